//! A hub of rooms in memory that every SDK of the Centrifuge client protocol can talk to:
//! `cargo run -p muster-edge --example hub -- 127.0.0.1:8000`.
//!
//! Options after the address: `--no-presence` answers presence with 108, `--joins` tells all members of joins and leaves,
//! `--personal` subscribes each session to the room `#USER`, and `--unknown NAMESPACE` answers subscriptions there with 102.
//! The SDKs' own tests ask for these.

#[path = "../tests/hub/mod.rs"]
mod hub;

use std::net::TcpListener;
use std::time::Duration;

use hub::{Hub, Joins};
use muster_edge::websocket::Origins;
use muster_edge::Settings;
use muster_tcp::{Limits, Tcp};

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("ws://{}/connection/websocket", listener.local_addr()?);
    let mut tcp = Tcp::new(Limits::default())?;
    tcp.listen(listener)?;
    let settings = Settings {
        origins: Origins::Any,
        version: "muster".to_owned(),
        ..Settings::default()
    };
    let mut hub = Hub::new(settings, std::process::id().into());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--no-presence" => hub.presence = false,
            "--joins" => hub.joins = Joins::All,
            "--personal" => hub.personal = true,
            "--unknown" => hub.unknown = words.next(),
            other => panic!("unknown option {other}"),
        }
    }
    loop {
        tcp.wait(Duration::from_secs(60));
        tcp.turn(&mut hub);
    }
}
