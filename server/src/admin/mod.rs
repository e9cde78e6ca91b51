//! What an operator sees of a server: `/metrics` for Prometheus, `/healthz`, `/readyz`, and `/shards` as JSON, over HTTP on an address of its own.
//!
//! One thread serves them, on whichever core is free, and reads what the shards' cores publish on the [`board`] and what
//! `main` says of the server's [`health`]; nothing here can make a core wait. The address is bound before the server starts, so
//! that one in use is reported at once and so that `/readyz` answers while memory is still being taken.
//!
//! Absent on purpose: anything that changes the server.

pub mod board;
pub mod health;
pub mod metrics;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use lanner_shared::time::{Clock, Instant};
use serde::Serialize;
use thiserror::Error;

use crate::config::ServerConfig;
use crate::config::memory_plan::MemoryPlan;
use crate::server::bind::bind;
use crate::shard::ShardStats;
use crate::transport::stats::TransportStats;
use board::Board;
use health::{Health, Phase};

/// What the endpoint shows.
#[derive(Clone, Debug)]
pub struct Admin {
    board: Arc<Board>,
    health: Arc<Health>,
    tenants: Arc<[String]>,
    memory_plan: Arc<MemoryPlan>,
    started: Instant,
}

/// An address for the endpoint that can't be had.
#[derive(Debug, Error)]
#[error("--admin {address}: {source}; {hint}")]
pub struct AdminError {
    address: SocketAddr,
    source: io::Error,
    hint: String,
}

impl Admin {
    /// The endpoint of a server with this configuration.
    #[must_use]
    pub fn new(config: &ServerConfig, board: Arc<Board>, health: Arc<Health>) -> Admin {
        Admin {
            board,
            health,
            tenants: config.tenants.iter().map(|tenant| tenant.name.clone()).collect(),
            memory_plan: Arc::new(config.memory_plan()),
            started: Clock.now(),
        }
    }

    /// Binds `address` and serves it on a thread of its own until the process ends. Returns the address with the port that was
    /// really taken.
    ///
    /// # Errors
    /// An address that can't be had, with who may have it.
    pub fn serve(self, address: SocketAddr) -> Result<SocketAddr, AdminError> {
        let refused = |source: io::Error| AdminError { address, hint: hint(address, &source), source };
        let listener = bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let serving = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, self.router()).await
        };
        let serve = move || {
            if let Err(error) = runtime.block_on(serving) {
                tracing::error!("the admin endpoint at {bound} has ended: {error}");
            }
        };
        thread::Builder::new().name("admin".to_owned()).spawn(serve).map_err(refused)?;
        Ok(bound)
    }

    fn router(self) -> Router {
        Router::new()
            .route("/metrics", get(show_metrics))
            .route("/healthz", get(|| async { "alive\n" }))
            .route("/readyz", get(show_readiness))
            .route("/shards", get(show_shards))
            .fallback(|| async { (StatusCode::NOT_FOUND, "there are: /metrics /healthz /readyz /shards\n") })
            .with_state(self)
    }

    /// Milliseconds since the endpoint was made.
    fn uptime_ms(&self) -> u64 {
        u64::try_from(Clock.now().since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    /// The latest report of each shard of each tenant; one that says nothing where there is none yet, so that no metric is ever missing.
    fn accounts(&self) -> Vec<Account<'_>> {
        let mut accounts = Vec::new();
        for shard in 0..self.board.shards() {
            for (tenant, name) in self.tenants.iter().enumerate() {
                let report = self.board.report(shard, tenant);
                let (at_ms, stats, transport) = report.map_or_else(Default::default, |report| {
                    (report.at_ms, report.stats.clone(), report.transport)
                });
                accounts.push(Account {
                    shard,
                    tenant: name,
                    is_first_of_shard: tenant == 0,
                    at_ms,
                    stats,
                    transport,
                });
            }
        }
        accounts
    }
}

/// What a shard of a tenant has to say.
#[derive(Debug, Serialize)]
struct Account<'a> {
    shard: u16,
    tenant: &'a str,
    /// The transport's account is the core's and stands with each of its tenants: sums take it from the first.
    #[serde(skip)]
    is_first_of_shard: bool,
    /// When, in milliseconds of the server's clock; 0 before the first report.
    at_ms: u64,
    stats: ShardStats,
    transport: TransportStats,
}

/// What `/shards` answers.
#[derive(Serialize)]
struct ShardsAnswer<'a> {
    version: &'static str,
    boot: Option<String>,
    phase: Phase,
    uptime_ms: u64,
    memory_plan: &'a MemoryPlan,
    shards: Vec<Account<'a>>,
}

async fn show_metrics(State(admin): State<Admin>) -> Response {
    match metrics::as_text(&admin) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn show_readiness(State(admin): State<Admin>) -> Response {
    let phase = admin.health.phase();
    let status = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{}\n", phase.name())).into_response()
}

async fn show_shards(State(admin): State<Admin>) -> Response {
    let answer = ShardsAnswer {
        version: env!("CARGO_PKG_VERSION"),
        boot: admin.health.boot(),
        phase: admin.health.phase(),
        uptime_ms: admin.uptime_ms(),
        memory_plan: &admin.memory_plan,
        shards: admin.accounts(),
    };
    Json(answer).into_response()
}

fn hint(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("'ss -ltnp sport = :{port}' shows who has it; choose another port, or --admin off")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 'ip address' lists those that it has".to_owned()
        }
        _ => "choose another address, or --admin off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn endpoint(line: &[&str]) -> (SocketAddr, Arc<Health>, Arc<Board>) {
        use crate::config::flags::{Asked, parse};
        let words = ["lanner-server", "--memory", "8MiB", "--shards", "1"].iter().chain(line);
        let Ok(Asked::Serve(flags)) = parse(words) else { panic!("{line:?}") };
        let config = crate::config::resolve::resolve(*flags).expect("a configuration");
        let board = Arc::new(Board::new(config.shards(), config.tenants.len()));
        let health = Arc::new(Health::default());
        let admin = Admin::new(&config, board.clone(), health.clone());
        (admin.serve("127.0.0.1:0".parse().expect("an address")).expect("a port"), health, board)
    }

    /// Status and body of a request.
    fn ask(address: SocketAddr, path: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(address).expect("connected");
        write!(connection, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("answered");
        let status = answer.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a status");
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).expect("a body");
        (status, body)
    }

    /// Shows when a server is ready, and that it is alive all the while.
    #[test]
    fn readiness_follows_the_phase() {
        let (address, health, _) = endpoint(&[]);
        assert_eq!(ask(address, "/readyz"), (503, "starting\n".to_owned()));
        health.is_ready([7; 16]);
        assert_eq!(ask(address, "/readyz"), (200, "ready\n".to_owned()));
        health.is_draining();
        assert_eq!(ask(address, "/readyz"), (503, "draining\n".to_owned()));
        assert_eq!(ask(address, "/healthz").0, 200);
        assert_eq!(ask(address, "/").0, 404);
    }

    /// Shows that what a core publishes is what `/shards` and `/metrics` say, and that all of it is there before anything is published.
    #[test]
    fn published_reports_are_shown() {
        let (address, health, board) = endpoint(&[]);
        health.is_ready([0xab; 16]);
        let shards = |body: &str| serde_json::from_str::<serde_json::Value>(body).expect("JSON");
        let before = shards(&ask(address, "/shards").1);
        assert_eq!(before["shards"][0]["stats"]["puts"], 0);
        assert_eq!(before["boot"], "ab".repeat(16));
        assert!(ask(address, "/metrics").1.contains("\nlanner_puts_total{shard=\"0\",tenant=\"\"} 0\n"));
        let mut stats = ShardStats::default();
        stats.puts += 3;
        let transport = TransportStats { tcp_connections: 2, ..TransportStats::default() };
        let report = board::ShardReport { shard: 0, tenant: 0, at_ms: 5, stats, transport };
        board.publish(lanner_shared::ShardId(0), 0, report);
        let after = shards(&ask(address, "/shards").1);
        assert_eq!(after["shards"][0]["stats"]["puts"], 3);
        assert_eq!(after["shards"][0]["transport"]["tcp_connections"], 2);
        assert!(after["memory_plan"].as_array().is_some_and(|lines| lines.len() > 5));
        assert!(ask(address, "/metrics").1.contains("\nlanner_puts_total{shard=\"0\",tenant=\"\"} 3\n"));
    }

    /// Shows that a port in use is one line that names it and how to find its owner.
    #[test]
    fn a_port_in_use_is_named() {
        let (address, health, board) = endpoint(&[]);
        let admin = Admin {
            board,
            health,
            tenants: Arc::new([]),
            memory_plan: Arc::new(MemoryPlan::default()),
            started: Instant::ZERO,
        };
        let error = admin.serve(address).expect_err("in use").to_string();
        assert!(
            error.contains(&address.to_string()) && error.contains("ss -ltnp") && !error.contains('\n'),
            "{error}"
        );
    }
}
