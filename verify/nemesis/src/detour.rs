//! An address that leads to another server for some clients, as after a wrong change of DNS or NAT.

use crate::world::{Failure, World};

#[derive(Clone, Debug)]
pub(crate) struct Detour {
    /// Name of its table in the network of each client.
    pub(crate) table: String,
    pub(crate) clients: Vec<u8>,
    /// `host:port`, as `to`.
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Detour {
    /// Connections that exist go on to the first server, so it ends them.
    pub(crate) async fn begin(&self, world: &World) -> Result<(), Failure> {
        let Self { table, clients, from, to } = self;
        let (host, port) = from.rsplit_once(':').ok_or("no port")?;
        let rules = format!(
            "add table ip {table}; \
             add chain ip {table} out {{ type nat hook output priority -100; policy accept; }}; \
             add rule ip {table} out ip daddr {host} tcp dport {port} dnat to {to}"
        );
        for client in clients {
            world.rules(Some(*client), &rules).await?;
        }
        end_connections(world, from).await;
        Ok(())
    }

    /// After an error, continues with the other clients, and returns the first error at the end.
    pub(crate) async fn end(&self, world: &World) -> Result<(), Failure> {
        let Self { table, clients, to, .. } = self;
        let rules = format!("add table ip {table}; delete table ip {table}");
        let mut result = Ok(());
        for client in clients {
            let ended = world.rules(Some(*client), &rules).await;
            result = result.and(ended);
        }
        end_connections(world, to).await;
        result
    }
}

async fn end_connections(world: &World, addr: &str) {
    world.ask(addr, &["CLIENT", "KILL", "TYPE", "normal"]).await;
}
