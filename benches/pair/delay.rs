//! A proxy between clients and a server that delays all data, like a network. The proxy uses its
//! own threads, because the timer of a runtime is too coarse for the delays of a network.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Starts a proxy in front of `host:port` and returns the proxy's URL. The proxy delays the data in
/// each direction. It runs until this process ends.
pub(crate) fn delayed(target: &str, delay: Duration) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let target = target.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&target) else { return };
            let again = |s: &TcpStream| s.try_clone().expect("a socket");
            // The proxy accepts at once; in a network the connect takes a round trip.
            pass(again(&client), again(&server), delay, 2 * delay);
            pass(server, client, delay, Duration::ZERO);
        }
    });
    format!("redis://127.0.0.1:{port}")
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration, connect: Duration) {
    for socket in [&from, &to] {
        socket.set_nodelay(true).expect("a socket");
    }
    let (tx, rx) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        std::thread::sleep(connect);
        let mut buffer = [0; 16_384];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if tx.send((Instant::now() + delay, buffer[..n].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, piece) in rx {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
}
