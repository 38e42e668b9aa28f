//! Tests of the doctor with faults that a real server cannot be made to report. A proxy changes the
//! replies: wrong clocks, other versions, late replicas, addresses of other servers.

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Warning};
use crate::lab::{Lab, NAME, Plan, wait_for};
use crate::settings::Ward;
use crate::support::proxy::{Proxy, overwrite, shift_time};

fn subject(at: &str) -> String {
    format!("{NAME} {at}")
}

#[test]
fn clocks_versions_and_lag() {
    let lab = Lab::up(&Plan { proxies: true, ..Plan::default() });
    let bench = Bench::new(Patient::group(NAME, &lab.sentinel_addrs()));
    let at = |i: usize| subject(&lab.known_as(i));
    let report = bench.exactly(
        "a replica two seconds ahead",
        &[("clock-skew", Warning, at(1))],
        || lab.proxies[1].edit(shift_time(2)),
        || lab.proxies[1].honest(),
    );
    let says = &report.of("clock-skew", &at(1)).message;
    assert!(says.contains("19") || says.contains("20"), "{says}");
    bench.exactly(
        "a master some seconds behind, which is beyond clock_error",
        &[("clock-skew", Error, at(0))],
        || lab.proxies[0].edit(shift_time(-6)),
        || lab.proxies[0].honest(),
    );
    bench.exactly(
        "this machine is the one that is wrong",
        &[("clock-skew", Error, "this machine".to_owned())],
        || lab.proxies.iter().for_each(|p| p.edit(shift_time(-3))),
        || lab.proxies.iter().for_each(Proxy::honest),
    );
    bench.exactly(
        "a server that is too old",
        &[("refused", Error, at(2))],
        || lab.proxies[2].edit(version("6.0.1")),
        || lab.proxies[2].honest(),
    );
    firewall(&lab, &bench);
    lag(&lab, &bench);
}

/// Returns a function that replaces the server's version in the bytes of a reply. The field for the
/// version has different names in Redis and Valkey.
fn version(shown: &'static str) -> impl Fn(&mut Vec<u8>) + Send {
    move |bytes| {
        for name in ["redis_version:", "valkey_version:"] {
            overwrite(name, shown)(bytes);
        }
    }
}

fn firewall(lab: &Lab, bench: &Bench) {
    let at = subject(&lab.known_as(2));
    bench.exactly(
        "a firewall before us alone",
        &[("unreachable", Error, at)],
        || lab.proxies[2].shut(true),
        || lab.proxies[2].shut(false),
    );
}

/// The replicas connect to the master through the master's proxy. So the proxy can keep their
/// acknowledgements back, and the master reports a lag.
fn lag(lab: &Lab, bench: &Bench) {
    let both = [1, 2].map(|i| ("replicas", Warning, subject(&lab.known_as(i))));
    bench.exactly(
        "replicas whose acknowledgements do not come",
        &both,
        || lab.proxies[0].mute(true),
        || lab.proxies[0].mute(false),
    );
}

#[test]
fn addresses_that_lead_nowhere_or_to_oneself() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    let nobody = crate::support::server::free_port();
    let (replica, master) = (&ward.servers[1], &ward.servers[0]);
    let announce = |port: u16| {
        ward.set(1, "replica-announce-port", &port.to_string());
        crate::support::group::cli(replica, &["CLIENT", "KILL", "TYPE", "master"]);
    };
    bench.exactly(
        "a replica behind NAT",
        // The doctor counts the address that the replica now announces as a fourth server. For four
        // servers `min-replicas-to-write` 1 is too small.
        &[
            ("unreachable", Error, subject_of(&ward, nobody)),
            ("min-replicas", Warning, ward.server(0)),
            ("min-replicas", Warning, ward.server(1)),
            ("min-replicas", Warning, ward.server(2)),
        ],
        || announce(nobody),
        || {
            announce(0);
            wait_for("the old address", || {
                let info = crate::support::group::cli(master, &["INFO", "replication"]);
                !info.contains(&format!("port={nobody},"))
            });
            for at in &ward.sentinels {
                crate::support::group::cli(at, &["SENTINEL", "RESET", &ward.name]);
            }
        },
    );
    // For another machine, 127.0.0.1 is not an address of this group.
    let Some(ip) = own_address() else { return };
    let elsewhere = Proxy::between((ip, 0).into(), &ward.sentinels[0]);
    let report = Patient::group(&ward.name, &[elsewhere.addr()]).arg("--no-trial").examine();
    let errors = report.all(Error);
    let subject = format!("{} Sentinel {}", ward.name, elsewhere.addr());
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!((&*errors[0].check, &errors[0].subject), ("announced-address", &subject));
    let (_, port) = master.rsplit_once(':').expect("host:port");
    let monitor = format!("SENTINEL MONITOR {} {ip} {port} 2", ward.name);
    assert!(errors[0].fix.iter().any(|m| m.ends_with(&monitor)), "{:#?}", errors[0]);
}

fn subject_of(ward: &Ward, port: u16) -> String {
    format!("{} 127.0.0.1:{port}", ward.name)
}

/// Returns an address of this machine that other machines could use. Sends no packet.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}
