//! A certificate authority for each test, and the certificates that it signs.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::support::server::Server;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A certificate authority (CA), and a directory with the certificate files of the servers.
/// Dropping this value removes the directory.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    dir: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("palisade-tls-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("ca.crt"), &pem).unwrap();
        Self { issuer: Issuer::new(params, key), pem, dir }
    }

    /// Returns the CA's certificate, as a user would pass it to the library.
    pub(crate) fn root(&self) -> Vec<u8> {
        self.pem.clone().into_bytes()
    }

    /// Signs a certificate for these names. Returns the certificate and its key.
    pub(crate) fn sign(&self, names: &[&str]) -> (Vec<u8>, Vec<u8>) {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "a leaf");
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        (pem.into_bytes(), key.serialize_pem().into_bytes())
    }

    /// Starts a `redis-server` or `redis-sentinel` with TLS. Its certificate contains these names.
    pub(crate) fn serve(&self, program: &str, names: &[&str], more: &[&str]) -> Server {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = |end: &str| self.dir.join(format!("{n}.{end}")).display().to_string();
        let (certificate, key) = self.sign(names);
        fs::write(file("crt"), certificate).unwrap();
        fs::write(file("key"), key).unwrap();
        let (crt, key) = (file("crt"), file("key"));
        let ca = self.dir.join("ca.crt").display().to_string();
        let mut args = if program == "redis-sentinel" { vec!["sentinel.conf"] } else { Vec::new() };
        args.extend(["--tls-cert-file", &crt, "--tls-key-file", &key, "--tls-ca-cert-file", &ca]);
        if !more.contains(&"--tls-auth-clients") {
            args.extend(["--tls-auth-clients", "no"]);
        }
        args.extend(more);
        Server::start_tls(program, &args)
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
