//! Formats a whole plan as text. The text is printed when a rule was broken.

use std::fmt::{self, Write as _};

use super::{NodePlan, Plan, Settings, Steps};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, clients) = (self.nodes.len(), self.clients.len());
        writeln!(f, "seed {} ({:?}): {nodes} nodes, {clients} clients", self.seed, self.theme)?;
        if let Some(tamper) = self.tamper {
            writeln!(f, "  changed: {tamper:?}")?;
        }
        let (drift, error) = (self.truth.drift_ppm, self.truth.error);
        writeln!(
            f,
            "  clocks within {drift} ppm and {error} µs; node deadline {} ms",
            self.deadline
        )?;
        for (i, settings) in self.stages.iter().enumerate() {
            writeln!(f, "  settings {i}: {settings}")?;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            write!(f, "  node {i}: {node}")?;
        }
        if let Some(cluster) = &self.cluster {
            writeln!(f, "  {cluster:?}")?;
        }
        for (i, c) in self.clients.iter().enumerate() {
            write!(f, "  client {i}: runs {} ppm fast, {:?}", c.clock.ppm, c.clock.wall)?;
            write!(f, ", knows L of servers {:03b}", c.reads)?;
            writeln!(f, "{}", if c.twin { ", its second node is the first" } else { "" })?;
        }
        writeln!(f, "  {:?}, {:?}", self.net, self.durability)?;
        writeln!(f, "  a copy each {} ms{}", self.copy_every, self.oddities())?;
        if self.orders.share > 0 {
            writeln!(f, "  {:?}", self.orders)?;
        }
        for task in &self.tasks {
            writeln!(f, "  client {} does {:?}", task.client, task.actions)?;
        }
        for (at, fault) in &self.faults {
            writeln!(f, "  at {at} ms {fault}")?;
        }
        Ok(())
    }
}

impl Plan {
    fn oddities(&self) -> String {
        let mut all = String::new();
        if self.cross {
            all.push_str(", replicas may follow a replaced master");
        }
        if self.apart {
            all.push_str(", server clocks beyond the bound");
        }
        if self.steps != Steps::None {
            let _ = write!(all, ", clock steps: {:?}", self.steps);
        }
        all
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ttl {} ms of at most {} ms, ", self.ttl, self.max_ttl)?;
        write!(f, "E {} ms, drift {} ppm, ", self.clock_error, self.drift_ppm)?;
        write!(f, "retention {} ms, nodes {:b}", self.retention, self.nodes)
    }
}

impl fmt::Display for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, server) in self.servers.iter().enumerate() {
            let more = if i > 0 { "; " } else { "" };
            write!(f, "{more}{:?}, L {} ms", server.clock, server.window)?;
        }
        let whose = if self.is_foreign { ", of another deployment" } else { "" };
        writeln!(f, "{whose}{}", if self.is_new { "" } else { ", of unknown past" })
    }
}
