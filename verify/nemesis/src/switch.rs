//! An address that leads to another server from one moment on, as a name in DNS, a moved address or
//! a service with the wrong pods does. Connections to the server before are cut at that moment.

use std::io;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct Switch {
    at: String,
    target: watch::Sender<String>,
    task: JoinHandle<()>,
}

impl Switch {
    /// Listens on a free port of 127.0.0.1. The address leads to `target`.
    pub(crate) async fn to(target: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let at = listener.local_addr()?.to_string();
        let (target, seen) = watch::channel(target.to_owned());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(join(client, seen.clone()));
            }
        });
        Ok(Self { at, target, task })
    }

    pub(crate) fn addr(&self) -> &str {
        &self.at
    }

    pub(crate) fn lead_to(&self, target: &str) {
        self.target.send_replace(target.to_owned());
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Copies between a client and the server until one of them ends, or the address leads elsewhere.
async fn join(mut client: TcpStream, mut target: watch::Receiver<String>) {
    let to = target.borrow_and_update().clone();
    let Ok(mut server) = TcpStream::connect(to).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    tokio::select! {
        biased;
        _ = target.changed() => {}
        _ = copy_bidirectional(&mut client, &mut server) => {}
    }
}
