//! Logins on connections that have one already.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::Assumption;
use crate::ask::pause;
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "overview 10",
        "a refused AUTH leaves the connection with its user",
        "WRONGPASS, one",
        refused,
    ),
    Assumption::new(
        "overview 10",
        "AUTH on a connection that listens (RESP3): whose it is then, and what becomes of it",
        "two, listens",
        listening,
    ),
    Assumption::new(
        "overview 10",
        "ACL DELUSER of the user before the last AUTH; of the user of the last one",
        "goes on, is cut",
        deleted,
    ),
];

struct Con(TcpStream);

impl Con {
    /// Logs in as the first of two users.
    fn to(server: &Server) -> Self {
        for user in ["one", "two"] {
            server.cli(&[
                "ACL",
                "SETUSER",
                user,
                "on",
                &format!(">of-{user}"),
                "+@all",
                "~*",
                "&*",
            ]);
        }
        let con = TcpStream::connect(server.addr()).expect("it listens");
        con.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        let mut con = Self(con);
        con.say("HELLO 3 AUTH one of-one");
        con
    }

    /// Returns everything that is there a moment later.
    fn say(&mut self, line: &str) -> String {
        let _ = self.0.write_all(format!("{line}\r\n").as_bytes());
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = self.0.read(&mut some) {
            all.extend_from_slice(&some[..n]);
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    fn user(&mut self) -> String {
        let said = self.say("ACL WHOAMI");
        said.lines().nth(1).unwrap_or("nobody").to_owned()
    }
}

fn refused() -> String {
    let server = Server::start(&[]);
    let mut con = Con::to(&server);
    let said = con.say("AUTH two wrong");
    let code = said.trim_start_matches('-').split(' ').next().unwrap_or_default().to_owned();
    format!("{code}, {}", con.user())
}

fn listening() -> String {
    let server = Server::start(&[]);
    let mut con = Con::to(&server);
    con.say("SUBSCRIBE c");
    con.say("AUTH two of-two");
    let user = con.user();
    server.cli(&["PUBLISH", "c", "a-message"]);
    let listens = con.say("PING").contains("a-message");
    format!("{user}, {}", if listens { "listens" } else { "is deaf" })
}

fn deleted() -> String {
    let server = Server::start(&[]);
    let mut con = Con::to(&server);
    con.say("AUTH two of-two");
    let mut after = |user| {
        server.cli(&["ACL", "DELUSER", user]);
        pause(200);
        if con.say("PING").contains("PONG") { "goes on" } else { "is cut" }
    };
    format!("{}, {}", after("one"), after("two"))
}
