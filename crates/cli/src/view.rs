//! `rgaps view`.

use crate::args::{Common, View};
use crate::output::Output;
use crate::session;
use crate::stop::Stop;
use anyhow::Context as _;
use rgaps_view::{Options, Server};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);

/// The addresses of the server, as the command prints them.
#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
    /// The page's address.
    url: String,
    /// The WebSocket's address.
    websocket: String,
    /// A page that opens Foxglove with the WebSocket's address.
    foxglove: String,
    needs_token: bool,
}

pub fn view(common: &Common, command: &View, output: &mut Output) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let mut options = Options {
        patterns: command.patterns.clone(),
        listen: command.listen,
        token: token(command)?,
        rate: command.rate,
        bytes_max: command.max_bytes.0,
        clients_max: command.clients.into(),
        ..Options::default()
    };
    options.origins.extend(command.allow_origin.iter().cloned());
    let needs_token = options.token.is_some();
    let server = Server::start(session::look(common)?, options)?;
    let at = listening(server.address(), needs_token);
    output.put(&at, |to| {
        writeln!(to, "in a browser   {}", at.url)?;
        writeln!(to, "in Foxglove    {}", at.websocket)?;
        writeln!(to, "               {}", at.foxglove)?;
        if needs_token {
            writeln!(to, "TOKEN stands for the token, which is not shown here")?;
        }
        if at.address.ip().is_unspecified() {
            writeln!(
                to,
                "on another host, use this host's name in these addresses"
            )?;
        }
        writeln!(to, "Ctrl-C ends it")
    })?;
    while !stop.is_set() {
        std::thread::sleep(SLICE);
    }
    Ok(())
}

fn token(command: &View) -> anyhow::Result<Option<String>> {
    let Some(file) = &command.token_file else {
        return Ok(command.token.clone());
    };
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("the token cannot be read from {}", file.display()))?;
    Ok(Some(text.trim().to_owned()))
}

fn listening(address: SocketAddr, needs_token: bool) -> Listening {
    let here = match address.ip() {
        // The printed address is for a browser on this host. On another host, users put this host's name there.
        IpAddr::V4(ip) if ip.is_unspecified() => format!("127.0.0.1:{}", address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("[::1]:{}", address.port()),
        _ => address.to_string(),
    };
    let query = if needs_token { "/?token=TOKEN" } else { "/" };
    let websocket = format!("ws://{here}{query}");
    let escaped = websocket.replace('?', "%3F").replace('=', "%3D");
    Listening {
        address,
        url: format!("http://{here}{query}"),
        foxglove: format!("https://app.foxglove.dev/~/view?ds=foxglove-websocket&ds.url={escaped}"),
        websocket,
        needs_token,
    }
}
