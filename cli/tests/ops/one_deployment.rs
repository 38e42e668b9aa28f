//! Nodes that were marked one by one get the id of one deployment.

use std::time::Instant;

use super::*;

/// Returns the words of the server's marker, without the deployment, and the deployment.
fn marker(server: &Server) -> (Vec<String>, String) {
    let marker = server.cli(&["GET", "palisade:generation"]);
    let mut words: Vec<String> = marker.split_whitespace().map(str::to_owned).collect();
    let deployment = words.remove(4);
    (words, deployment)
}

#[test]
fn nodes_that_were_marked_one_by_one_are_made_one_deployment_and_lose_nothing() {
    let servers = [(); 3].map(|()| Server::start(&[]));
    let urls = servers.each_ref().map(Server::url);
    for url in &urls {
        assert!(palisade(&["init", "--new", "--node", url]).status.success());
    }
    let nodes: Vec<&str> = urls.iter().flat_map(|url| ["--node", url.as_str()]).collect();
    let of_all = |args: &[&str], rest: &[&str]| palisade(&[args, &nodes[..], rest].concat());
    let lock = || of_all(&["lock", "job", "-n", "--node-deadline", "2s"], &["--", "true"]);
    let out = lock();
    assert!(!out.status.success(), "{}", words(&out));
    let said = words(&out).split_whitespace().collect::<Vec<_>>().join(" ");
    let mend = "`palisade settings --one-deployment --yes --node <url>`";
    assert!(said.contains(mend), "{said}");
    let before = servers.each_ref().map(marker);
    for (_, deployment) in &before {
        assert!(said.contains(deployment), "{deployment}: {said}");
    }

    let out = of_all(&["settings", "--one-deployment"], &[]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("nothing was changed"), "{}", words(&out));
    assert_eq!(servers.each_ref().map(marker), before);
    let away = format!("redis://127.0.0.1:{}", support::server::free_port());
    let out = of_all(&["settings", "--one-deployment", "--yes"], &["--node", &away]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert_eq!(servers.each_ref().map(marker), before);

    let out = of_all(&["settings", "--one-deployment", "--yes"], &[]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    for (server, (rest, _)) in servers.iter().zip(&before) {
        assert_eq!(marker(server), (rest.clone(), before[0].1.clone()));
    }
    let out = lock();
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    let out = of_all(&["settings", "--one-deployment", "--yes"], &[]);
    assert!(words(&out).contains("as before"), "{}", words(&out));
    // A node among others that agree is a wrong address, unless a person names the id. Data without
    // a name get one.
    let other = Server::start(&[]);
    assert!(palisade(&["init", "--new", "--node", &other.url()]).status.success());
    let (url, theirs) = (other.url(), marker(&other));
    let out = of_all(&["settings", "--one-deployment", "--yes"], &["--node", &url]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert_eq!(marker(&other), theirs);
    let nameless = format!("{} {}", "0".repeat(16), "0".repeat(16));
    let text = servers[2].cli(&["GET", "palisade:generation"]);
    let text = text.trim_end();
    servers[2].cli(&[
        "SET",
        "palisade:generation",
        &[&text[..68], &nameless, &text[101..]].concat(),
    ]);
    let out = of_all(&["settings", "--one-deployment", "--yes"], &[]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert_eq!(marker(&servers[2]).1, before[0].1);
    // A person may name the id.
    let named = ["settings", "--one-deployment", "--yes", "--deployment", "00000000000000a1"];
    let out = of_all(&named, &[]);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(servers.iter().all(|server| marker(server).1 == "00000000000000a1"));
}

#[test]
fn a_replica_that_lacks_the_id_is_reported() {
    let master = Server::start(&[]);
    let url = master.url();
    assert!(palisade(&["init", "--new", "--node", &url]).status.success());
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
    let begun = Instant::now();
    while !master.cli(&["INFO", "replication"]).contains("state=online") {
        assert!(begun.elapsed() < SOON, "it does not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
    let id = "00000000000000a1";
    let named = ["settings", "--one-deployment", "--yes", "--deployment", id, "--node", &url];
    replica.freeze();
    let out = palisade(&named);
    replica.resume();
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    let said = words(&out).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("but only 0 of its 1 replicas have it: before it is used"), "{said}");
    assert_eq!(marker(&master).1, id);
    let out = palisade(&named);
    assert_eq!(out.status.code(), Some(0), "{}", words(&out));
    assert!(words(&out).contains("as before"), "{}", words(&out));
    assert_eq!(marker(&replica).1, id);
}
