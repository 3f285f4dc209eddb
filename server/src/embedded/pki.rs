//! Keys and certificates of the local control plane, by rcgen: an authority, the API server's certificate, the key that signs
//! service-account tokens.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Where they are.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The API server's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The key that signs service accounts' tokens.
    pub accounts: PathBuf,
    /// Its public half (the API server does not read it out of the private one).
    pub accounts_public: PathBuf,
}

impl Pki {
    /// Makes what is missing in `dir`.
    ///
    /// # Errors
    /// From the file system.
    pub fn ensure(dir: &Path) -> anyhow::Result<Self> {
        let file = |name: &str| dir.join(name);
        let pki = Self {
            ca: file("ca.crt"),
            cert: file("apiserver.crt"),
            key: file("apiserver.key"),
            accounts: file("accounts.key"),
            accounts_public: file("accounts.pub"),
        };
        if [
            &pki.ca,
            &pki.cert,
            &pki.key,
            &pki.accounts,
            &pki.accounts_public,
        ]
        .iter()
        .all(|f| f.exists())
        {
            return Ok(pki);
        }
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::new(vec![])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "svcforge local control plane");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let mut params = CertificateParams::new(
            [
                "localhost",
                "kubernetes.default.svc",
                "127.0.0.1",
                "10.96.0.1",
            ]
            .map(String::from),
        )?;
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "kube-apiserver");
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &authority)?;
        fs::write(&pki.ca, authority.pem())?;
        fs::write(&pki.cert, cert.pem())?;
        secret(&pki.key, &key.serialize_pem())?;
        let accounts = KeyPair::generate()?;
        secret(&pki.accounts, &accounts.serialize_pem())?;
        fs::write(&pki.accounts_public, accounts.public_key_pem())?;
        Ok(pki)
    }
}

/// Writes a file only its owner may read.
pub fn secret(path: &Path, content: &str) -> std::io::Result<()> {
    fs::write(path, "")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    fs::write(path, content)
}
