//! What happens in one run: topology, load, network and faults, all drawn from the seed.
//!
//! Owns what a plan is. The draws stand below it, each by what a run of it is about.

use muster_rooms::Policy;
use muster_transport::Micros;

use crate::beside::Beside;
use crate::identities::Identities;
use crate::matrix::Strike;

pub use muster_simkit::{Weather, MS, SECOND};

mod allowed;
mod heavy;
mod layout;
mod mixed;
mod steady;
mod topology;

/// How long after the last fault everything must be as if nothing had happened: sessions idle out (3 s), a leave is held
/// (2 s), a client's longest wait between attempts (5 s), and three repair intervals.
pub const SETTLE: Micros = 13 * SECOND;
/// The same of views, where nobody joins or leaves any more: three repair intervals, each as long as a silent link is believed in.
pub const CONVERGED: Micros = 3 * SECOND;
/// How much longer it takes until a gateway that never came back is forgotten: its lease, and what a router that started
/// meanwhile takes to say that it knows all there is to know.
pub const FORGET: Micros = 34 * SECOND;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Gateway,
    Proxy,
    Broker,
    Router,
    Client,
}

/// What is done to a process or a path. The machines go by a clock that is never set, so no plan has a step of it.
pub type Fault = muster_simkit::Fault<Upkeep>;

/// What an operator does to servers.
#[derive(Clone, Copy, Debug)]
pub enum Upkeep {
    /// The placement says that the process drains, and after a while that it runs again; everyone hears of it within `spread`.
    Drain {
        process: usize,
        pause: Micros,
        spread: Micros,
    },
    /// The process is told to end and sends its clients to others; it starts again so long after it has ended.
    End { process: usize, down: Micros },
}

#[derive(Clone, Copy, Debug)]
pub struct Publishing {
    pub room: usize,
    pub every: Micros,
    pub burst: usize,
    pub bytes: (usize, usize),
}

#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub rooms: Vec<usize>,
    pub publishing: Vec<Publishing>,
    pub policy: Policy,
    pub inbox_bytes: usize,
    /// A slow reader: takes one item this often.
    pub read_every: Option<Micros>,
    /// Leaves a room and comes back, this often.
    pub toggle_every: Option<Micros>,
    /// Comes back with the positions it had.
    pub resumes: bool,
}

/// A client that does nothing, and would read at once.
impl Default for ClientPlan {
    fn default() -> Self {
        ClientPlan {
            rooms: vec![],
            publishing: vec![],
            policy: Policy::default(),
            inbox_bytes: 4 << 20,
            read_every: None,
            toggle_every: None,
            resumes: false,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// What the machines' clock says at the start.
    pub clock: Micros,
    pub gateways: usize,
    pub proxies: usize,
    pub brokers: usize,
    pub routers: usize,
    /// In how many partitions brokers and routers stand.
    pub partitions: (usize, usize),
    pub rooms: Vec<String>,
    pub clients: Vec<ClientPlan>,
    pub links: Weather,
    pub sessions: Weather,
    pub faults: Vec<(Micros, Fault)>,
    /// When publishing and faults end.
    pub heal: Micros,
    pub arena_bytes: usize,
    pub auth_delay: Micros,
    pub turn: Micros,
    pub bundle: bool,
    /// Everyone leaves and is silent for longer than a room is kept, then comes back.
    pub evicts: bool,
    /// How long after healing at most all views are to be those of the gateways.
    pub converges: Option<Micros>,
    /// How long after the return of a killed process every member must have received something new at the latest.
    pub back_max: Option<Micros>,
    /// How often each client sends a command.
    pub command_every: Option<Micros>,
    /// Within what time each command has its outcome, whatever becomes of one proxy.
    pub prompt: Option<Micros>,
    /// When the partitions of brokers, or of routers, double, each once; `partitions` is what comes of it.
    pub grows: Vec<(Micros, Kind)>,
    pub growing: Growing,
    /// A fault that falls into a step of the doubling.
    pub strike: Option<Strike>,
    pub beside: Option<Beside>,
    /// When the cluster's secret begins to be replaced, within what time all servers take a step of it, and how long it is
    /// until the next step then.
    pub rekeys: Option<(Micros, Micros, Micros)>,
    /// Whether nodes have to prove who they are, as that goes on.
    pub identities: Option<Identities>,
    /// Each client is given one gateway and no proxy; servers name the others.
    pub learns: bool,
}

/// How the control plane doubles partitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing {
    /// Within it all hear of a step.
    pub spread: Micros,
    /// So long after everyone is done with a step the next one begins.
    pub grace: Micros,
    /// Who stands still is not waited for: its session with the registry is over.
    pub forgets_paused: bool,
}
