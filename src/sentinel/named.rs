//! A server met under a name that does not lead to it: the name stands in its certificate, the
//! address is what a Sentinel announced.

use std::net::SocketAddr;
use std::sync::Arc;

use redis::io::AsyncDNSResolver;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisFuture};

/// Leads every name to one host.
struct LeadsTo(String);

impl AsyncDNSResolver for LeadsTo {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _name: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((&*self.0, port)).await?;
            Ok(Box::new(found) as Box<dyn Iterator<Item = SocketAddr> + Send + 'a>)
        })
    }
}

/// The address under which `addr` is to be opened so that its certificate is looked at as
/// `name`'s, and the configuration that leads there all the same. Without TLS, or without a name,
/// nothing changes.
pub(crate) fn under(
    name: Option<&Arc<str>>,
    addr: ConnectionAddr,
) -> (ConnectionAddr, AsyncConnectionConfig) {
    let config = AsyncConnectionConfig::new();
    match (name, addr) {
        (Some(name), ConnectionAddr::TcpTls { host, port, insecure, tls_params }) => {
            let config = config.set_dns_resolver(LeadsTo(host));
            let named =
                ConnectionAddr::TcpTls { host: (**name).to_owned(), port, insecure, tls_params };
            (named, config)
        }
        (_, addr) => (addr, config),
    }
}
