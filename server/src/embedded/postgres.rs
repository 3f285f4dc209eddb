//! A private Postgres from the machine's own binaries. It refuses to run as root: then it runs as `postgres` (or `nobody`).

use super::{
    ports::free_port,
    process::{Guarded, Launcher, Manner},
};
use crate::ids;
use anyhow::Context;
use nix::unistd::{Uid, User, chown};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A running Postgres.
#[derive(Debug)]
pub struct Postgres {
    /// How to reach it.
    pub dsn: String,
    process: Guarded,
}

impl Postgres {
    /// Starts it on a free port, with its data in `dir`/pg (or, as root, where the other user can reach it).
    ///
    /// # Errors
    /// When its binaries are missing or too old, or it does not start.
    pub async fn start(launcher: &Launcher, dir: &Path) -> anyhow::Result<Self> {
        let bin = binaries()?;
        let user = unprivileged()?;
        let home = data_home(dir, user.as_ref())?;
        let data = home.join("data");
        let password_file = home.join("password");
        if !data.join("PG_VERSION").exists() {
            init(&bin, &home, user.as_ref())?;
        }
        let password = fs::read_to_string(&password_file)
            .with_context(|| password_file.display().to_string())?;
        let port = free_port()?;
        let argv = [
            bin.join("postgres").display().to_string(),
            format!("-D{}", data.display()),
            format!("-p{port}"),
            "-clisten_addresses=127.0.0.1".into(),
            "-cunix_socket_directories=".into(),
            "-cmax_connections=300".into(),
            "-cshared_buffers=128MB".into(),
        ];
        let manner = Manner {
            interrupt: true,
            user: user.map(|u| (u.uid.as_raw(), u.gid.as_raw())),
        };
        let mut process = launcher.start("postgres", manner, &argv)?;
        let root = format!("postgres://svcforge:{}@127.0.0.1:{port}", password.trim());
        process
            .until(Duration::from_secs(60), || {
                answers(format!("{root}/postgres"))
            })
            .await?;
        ensure_database(&format!("{root}/postgres")).await?;
        Ok(Self {
            dsn: format!("{root}/svcforge"),
            process,
        })
    }

    /// Stops it.
    pub fn stop(&mut self) {
        self.process.stop();
    }
}

async fn answers(dsn: String) -> bool {
    use sqlx::Connection;
    match sqlx::PgConnection::connect(&dsn).await {
        Ok(connection) => connection.close().await.is_ok(),
        Err(_) => false,
    }
}

async fn ensure_database(dsn: &str) -> anyhow::Result<()> {
    use sqlx::Connection;
    let mut db = sqlx::PgConnection::connect(dsn).await?;
    let there: bool =
        sqlx::query_scalar("select exists (select from pg_database where datname = 'svcforge')")
            .fetch_one(&mut db)
            .await?;
    if !there {
        sqlx::query("create database svcforge")
            .execute(&mut db)
            .await?;
    }
    Ok(db.close().await?)
}

/// The folder of the newest Postgres binaries of the machine.
fn binaries() -> anyhow::Result<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    folders.extend(versions.map(|v| v.path().join("bin")));
    let usable = folders
        .into_iter()
        .filter(|f| f.join("postgres").exists() && f.join("initdb").exists());
    let newest = usable
        .filter_map(|folder| Some((major(&folder)?, folder)))
        .max();
    match newest {
        None => anyhow::bail!(
            "no Postgres server on this machine: install postgresql-15 or newer (Debian: apt-get install postgresql-15), or name a database with SVCFORGE_PG_DSN and use `svcforge serve`"
        ),
        Some((version, folder)) if version < 15 => {
            anyhow::bail!(
                "Postgres {version} in {} is too old: install 15 or newer",
                folder.display()
            )
        }
        Some((_, folder)) => Ok(folder),
    }
}

fn major(folder: &Path) -> Option<u32> {
    let out = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let number = text
        .split_whitespace()
        .find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split('.').next()?.parse().ok()
}

/// Whom to run as; none when svcforge itself is not root.
fn unprivileged() -> anyhow::Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    anyhow::bail!("Postgres refuses to run as root and there is no user `postgres` or `nobody`")
}

/// Where the data lives: beside everything else, unless the other user could not reach it there.
fn data_home(dir: &Path, user: Option<&User>) -> anyhow::Result<PathBuf> {
    let reachable = user.is_none()
        || dir
            .ancestors()
            .all(|a| fs::metadata(a).is_ok_and(|m| m.permissions().mode() & 0o001 != 0));
    let home = if reachable {
        dir.join("pg")
    } else {
        use sha2::{Digest, Sha256};
        let key = data_encoding::HEXLOWER
            .encode(&Sha256::digest(dir.as_os_str().as_encoded_bytes())[..8]);
        PathBuf::from("/var/lib/svcforge").join(key)
    };
    fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
    if let Some(user) = user {
        chown(&home, Some(user.uid), Some(user.gid))?;
    }
    Ok(home)
}

/// Removes the data.
///
/// # Errors
/// From the file system.
pub(super) fn forget(dir: &Path) -> anyhow::Result<()> {
    let home = data_home(dir, unprivileged()?.as_ref())?;
    Ok(fs::remove_dir_all(home)?)
}

fn init(bin: &Path, home: &Path, user: Option<&User>) -> anyhow::Result<()> {
    let _ = fs::remove_dir_all(home.join("data.new"));
    let password_file = home.join("password");
    fs::write(&password_file, ids::new_secret())?;
    fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600))?;
    let mut command = Command::new(bin.join("initdb"));
    command
        .arg(format!("--pgdata={}", home.join("data.new").display()))
        .arg(format!("--pwfile={}", password_file.display()))
        .args([
            "--username=svcforge",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-instructions",
        ])
        .current_dir("/");
    if let Some(user) = user {
        chown(&password_file, Some(user.uid), Some(user.gid))?;
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let out = command.output().context("cannot run initdb")?;
    anyhow::ensure!(
        out.status.success(),
        "initdb failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    // Whole or not at all.
    Ok(fs::rename(home.join("data.new"), home.join("data"))?)
}
