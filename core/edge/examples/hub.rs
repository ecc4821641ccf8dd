//! A hub of rooms in memory that every SDK of the Centrifuge client protocol can talk to:
//! `cargo run -p muster-edge --example hub -- 127.0.0.1:8000`.

#[path = "../tests/hub/mod.rs"]
mod hub;

use std::net::TcpListener;
use std::time::Duration;

use hub::Hub;
use muster_edge::websocket::Origins;
use muster_edge::Settings;
use muster_tcp::{Limits, Tcp};

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("ws://{}/connection/websocket", listener.local_addr()?);
    let mut tcp = Tcp::new(Limits::default())?;
    tcp.listen(listener)?;
    let settings = Settings {
        origins: Origins::Any,
        ..Settings::default()
    };
    let mut hub = Hub::new(settings, std::process::id().into());
    loop {
        tcp.wait(Duration::from_secs(60));
        tcp.turn(&mut hub);
    }
}
