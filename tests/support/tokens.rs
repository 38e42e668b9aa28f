//! A token service for tests: each question makes an ACL user with a password that ends. The end
//! kills the connections of that user, as services do, and counts them.
#![allow(dead_code, unreachable_pub)]

use std::future::Future;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::{Credentials, CredentialsAnswer, CredentialsProvider};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// What an end ends: the token, or the session that was opened with it. In both cases the service
/// cuts each connection that has not logged in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Token,
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Hangs,
    Errs,
    Expired,
    Panics,
    /// The server does not know the password.
    WrongPassword,
}

type Admin = Box<dyn Fn(&[&str]) -> String + Send + Sync>;

#[derive(Clone)]
pub struct Tokens(Arc<Shared>);

struct Shared {
    admin: Admin,
    ends: Ends,
    life: Duration,
    /// The connections of an ended token are killed.
    cuts: bool,
    trouble: Mutex<Option<Trouble>>,
    issued: AtomicU32,
    cut: AtomicU64,
    running: AtomicU32,
    most: AtomicU32,
    /// For the answer to a question.
    takes: Duration,
}

impl Tokens {
    /// `admin` runs a command on all servers, and returns the last line of each.
    pub fn new(
        ends: Ends,
        life: Duration,
        cuts: bool,
        admin: impl Fn(&[&str]) -> String + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            admin: Box::new(admin),
            ends,
            life,
            cuts,
            trouble: Mutex::default(),
            issued: AtomicU32::new(0),
            cut: AtomicU64::new(0),
            running: AtomicU32::new(0),
            most: AtomicU32::new(0),
            takes: Duration::from_millis(20),
        }))
    }

    pub fn trouble(&self, trouble: impl Into<Option<Trouble>>) {
        *self.0.trouble.lock().unwrap() = trouble.into();
    }

    pub fn issued(&self) -> u32 {
        self.0.issued.load(SeqCst)
    }

    /// Returns the number of connections that were killed, because their logins had ended.
    pub fn cut(&self) -> u64 {
        self.0.cut.load(SeqCst)
    }

    /// Returns the largest number of questions at one time.
    pub fn most_at_once(&self) -> u32 {
        self.0.most.load(SeqCst)
    }

    async fn run(&self, args: &[&str]) -> String {
        let shared = Arc::clone(&self.0);
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let run = move || (shared.admin)(&args.iter().map(String::as_str).collect::<Vec<_>>());
        spawn_blocking(run).await.expect("it runs")
    }

    async fn issue(&self) -> CredentialsAnswer {
        let n = self.0.issued.fetch_add(1, SeqCst);
        let (user, password) = (format!("app-{n}"), format!("s3cret-{n:06}"));
        let life = self.0.life;
        let given = Credentials::new(&password).user(&user);
        let given = match self.0.ends {
            Ends::Token => given.token_ends(life),
            Ends::Session => given.session_ends(life),
        };
        let trouble = *self.0.trouble.lock().unwrap();
        match trouble {
            Some(Trouble::Hangs) => pending().await,
            Some(Trouble::Errs) => return Err("the token service is down".into()),
            Some(Trouble::Expired) => return Ok(given.token_ends(Duration::ZERO)),
            Some(Trouble::Panics) => panic!("the provider of this test panics"),
            Some(Trouble::WrongPassword) => return Ok(given),
            None => {}
        }
        let set = format!(">{password}");
        self.run(&["ACL", "SETUSER", &user, "on", &set, "~*", "&*", "+@all"]).await;
        let this = self.clone();
        tokio::spawn(async move {
            sleep(life).await;
            if this.0.cuts {
                let killed = this.run(&["CLIENT", "KILL", "USER", &user]).await;
                let killed = killed.lines().filter_map(|n| n.trim().parse::<u64>().ok());
                this.0.cut.fetch_add(killed.sum(), SeqCst);
                this.run(&["ACL", "DELUSER", &user]).await;
            }
        });
        Ok(given)
    }
}

/// Gives what the function returns.
pub struct Gives<F>(pub F);

impl<F: Fn() -> Credentials + Send + Sync + 'static> CredentialsProvider for Gives<F> {
    fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>> {
        Box::pin(std::future::ready(Ok((self.0)())))
    }
}

struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl CredentialsProvider for Tokens {
    fn credentials(&self) -> Pin<Box<dyn Future<Output = CredentialsAnswer> + Send + '_>> {
        Box::pin(async {
            let running = self.0.running.fetch_add(1, SeqCst) + 1;
            let _running = Running(&self.0.running);
            self.0.most.fetch_max(running, SeqCst);
            sleep(self.0.takes).await;
            self.issue().await
        })
    }
}
