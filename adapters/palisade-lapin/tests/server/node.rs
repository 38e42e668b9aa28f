//! A RabbitMQ node with its own port mapper, ports, directory and settings. The node shares nothing
//! with other nodes.

use std::path::Path;
use std::process::Command;

/// The server's start script on Debian.
pub(super) const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Ports of a node on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// Port for clients.
    pub(super) amqp: u16,
    /// Port of the port mapper (`epmd -port … -address 127.0.0.1`).
    pub(super) mapper: u16,
    /// Port for other nodes of a cluster.
    pub(super) dist: u16,
}

/// Adds environment variables to the command of a node. With these variables the node uses only the
/// directory `dir` and the ports `ports`.
pub(super) fn apart(node: &mut Command, dir: &Path, ports: Ports) {
    node.env("HOME", dir)
        .env("RABBITMQ_NODENAME", format!("palisade-{}@localhost", ports.amqp))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", ports.amqp.to_string())
        .env("RABBITMQ_DIST_PORT", ports.dist.to_string())
        .env("ERL_EPMD_PORT", ports.mapper.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
        .env("RABBITMQ_LOG_BASE", dir.join("log"))
        .env("RABBITMQ_PID_FILE", dir.join("pid"))
        .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", dir.join("no-such-file"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
        // With this variable the start script replaces itself by the Erlang machine. So the Erlang
        // machine is the child process.
        .env("RABBITMQ_ALLOW_INPUT", "1");
}
