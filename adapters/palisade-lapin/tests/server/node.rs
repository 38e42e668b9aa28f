//! A RabbitMQ node apart from all others: its own port mapper, ports, directory and settings.

use std::path::Path;
use std::process::Command;

/// Debian's script.
pub(super) const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Ports on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// Where clients connect.
    pub(super) amqp: u16,
    /// Of the port mapper, `epmd -port … -address 127.0.0.1`.
    pub(super) mapper: u16,
    /// Where other nodes would connect.
    pub(super) dist: u16,
}

/// Adds to a command that starts `PROGRAM` what keeps the node to this directory and these ports.
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
        // The shell script becomes the Erlang machine, so that its process is the child.
        .env("RABBITMQ_ALLOW_INPUT", "1");
}
