//! The doctor's check of the addresses that Sentinels hand out.

use super::super::facts::{Group, Sentinel, has_port, host_of, join, place};
use super::super::report::Finding;
use super::wanted::is_local;
use super::{Answer, Check, Run, wanted};

pub(super) const ANNOUNCED_ADDRESS: Check = Check {
    id: "announced-address",
    why: "clients connect to the address that a Sentinel gives: 127.0.0.1 is a different machine \
          for each client",
    run: Run::Sentinels(announced_address),
};

fn announced_address(group: &Group, sentinel: &Sentinel) -> Answer {
    let master = sentinel.master.as_ref()?;
    let reported = || std::iter::once(master).chain(sentinel.replicas.iter().flatten());
    let odd: Vec<&str> =
        reported().filter(|f| !has_port(f)).filter_map(|f| Some(f.get("ip")?.as_str())).collect();
    if !odd.is_empty() {
        let message = format!(
            "it names servers at port 0, which nobody reaches: {}; when that is mended, have each \
             Sentinel forget them (one after the other, half a minute apart, while the master is \
             well)",
            wanted::PORT_0
        );
        let reset = sentinel.by_hand(&format!("SENTINEL RESET {}", group.name));
        let fix = wanted::tls_replication(group);
        let evidence = format!("port 0 at {}", odd.join(", "));
        return Ok(Finding::error(message, evidence).fix(fix).fix([reset]));
    }
    let named = place(master);
    let replicas: Vec<String> = sentinel.replicas.iter().flatten().filter_map(place).collect();
    let evidence = named.iter().chain(&replicas).map(String::as_str).collect::<Vec<_>>().join(", ");
    let here = host_of(&sentinel.at);
    let is_wrong = |at: &&String| is_local(host_of(at)) && !is_local(here);
    if !named.iter().chain(&replicas).any(|at| is_wrong(&at)) {
        return Ok(Finding::fine(evidence));
    }
    let is_sure =
        |at: &&String| wanted::machine(group) == Some(here) && is_wrong(at) && group.is_agreed(at);
    let name = &group.name;
    let masters = named.iter().filter(is_sure).flat_map(|at| {
        let (_, port) = wanted::parts(at);
        let remove = sentinel.by_hand(&format!("SENTINEL REMOVE {name}"));
        [remove].into_iter().chain(wanted::monitor_at(group, sentinel, (here, port)))
    });
    let replicas = replicas.iter().filter(is_sure).flat_map(|at| {
        let (_, port) = wanted::parts(at);
        let server = group.servers.iter().find(|s| s.at == *at);
        // A server of another address is one that the settings map.
        let mapped = server.filter(|s| s.hand != group.hand.to(at));
        let to = mapped.map_or_else(|| group.hand.to(&join(here, port)), |s| s.hand.clone());
        let set = format!("{to} CONFIG SET replica-announce-ip {here}");
        [set, format!("{to} CONFIG REWRITE")]
    });
    let message = "it hands out a local address: clients on other machines connect to themselves";
    let look = [sentinel.by_hand(&format!("SENTINEL MASTER {name}"))];
    Ok(Finding::error(message, evidence).fix(masters).fix(replicas).or_look(look))
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Facts;
    use super::super::tests::{all_masters, broken, fine, with};
    use crate::login::Hand;

    #[test]
    fn loopback_in_the_answer_of_a_sentinel_elsewhere() {
        fine("announced-address");
        let found = broken("announced-address", |f| {
            all_masters(f, "ip", "127.0.0.1");
            // No other Sentinel reports the real address of the master.
            f.groups[0].sentinels.truncate(1);
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
        let to = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL";
        assert_eq!(found.fix[0], format!("{to} REMOVE orders-a"));
        assert_eq!(found.fix[1], format!("{to} MONITOR orders-a 10.0.0.1 6379 2"));
        let replica = |left| {
            broken("announced-address", |f| {
                for s in &mut f.groups[0].sentinels {
                    let Ok(all) = &mut s.replicas else { unreachable!() };
                    all[0].insert("ip".into(), "::1".into());
                }
                f.groups[0].sentinels.truncate(left);
                let (user, has_password) = (Some("ops".into()), true);
                f.groups[0].hand = Hand { user, has_password, tls: true, ..Hand::default() };
            })
        };
        let found = replica(1);
        let to = "redis-cli -h 10.0.0.1 -p 6379 --tls --user ops --askpass CONFIG";
        assert_eq!(found.fix[0], format!("{to} SET replica-announce-ip 10.0.0.1"));
        // Nobody knows which machine the address means.
        assert!(replica(2).fix[0].ends_with("SENTINEL MASTER orders-a"));
    }

    #[test]
    fn all_on_one_machine_is_no_fault_of_addresses() {
        let here = |f: &mut Facts| {
            all_masters(f, "ip", "127.0.0.1");
            for (n, s) in f.groups[0].sentinels.iter_mut().enumerate() {
                s.at = format!("127.0.0.1:2637{n}");
            }
        };
        with("announced-address", here, |_| {});
    }
}
