//! A relay to a server, which refuses, closes or falls silent by a rule.

use std::io::{BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use crate::support::server::Server;

/// What a relay does with a command.
pub(crate) enum Act {
    Pass,
    /// The server answers this error.
    Refuse(&'static str),
    Close,
    /// Nothing is answered from now on.
    Mute,
}

/// Starts a relay to a server.
pub(crate) fn relay(
    server: &Server,
    rule: impl Fn(&[String]) -> Act + Clone + Send + 'static,
) -> String {
    let (to, listener) = (server.addr(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { continue };
            let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let rule = rule.clone();
            std::thread::spawn(move || serve(&client, &server, rule));
        }
    });
    format!("redis://{at}")
}

fn serve(client: &TcpStream, mut server: &TcpStream, rule: impl Fn(&[String]) -> Act) {
    let mut from = BufReader::new(client);
    while let Some(words) = command(&mut from) {
        let refusal = ["EVAL", "return redis.error_reply(ARGV[1])", "0"].map(str::to_owned);
        let words = match rule(&words) {
            Act::Pass => words,
            Act::Refuse(why) => refusal.into_iter().chain([why.to_owned()]).collect(),
            Act::Close => break,
            Act::Mute => continue,
        };
        let each = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let bytes = format!("*{}\r\n{}", words.len(), each.collect::<String>());
        if server.write_all(bytes.as_bytes()).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn command(from: &mut impl std::io::BufRead) -> Option<Vec<String>> {
    let number = |from: &mut dyn std::io::BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse::<usize>().ok()
    };
    let count = number(from)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

pub(crate) fn is(words: &[String], name: &str) -> bool {
    words.first().is_some_and(|word| word == name)
}
