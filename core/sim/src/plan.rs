//! The plan of one run: topology, load, network and faults, all drawn from the seed.
//!
//! Owns the form of a plan. The draws are below it, each by the subject of its runs.

use muster_rooms::Policy;
use muster_transport::Micros;

use crate::identities::Identities;
use crate::matrix::Strike;
use crate::second::SecondCluster;

pub use crate::fault::{Fault, Kind, Upkeep};
pub use allowed::Late;
pub use muster_simkit::{Weather, MS, SECOND};

mod allowed;
mod clusters;
mod heavy;
mod layout;
mod mixed;
mod steady;
mod struck;
mod topology;

/// How long after the last fault everything must be as if nothing had happened: sessions idle out (3 s), a leave is held
/// (2 s), a client's longest wait between attempts (5 s), and three repair intervals.
pub const SETTLE: Micros = 13 * SECOND;
/// The same for views, once no member joins or leaves: three repair intervals, each as long as the timeout of a silent
/// link.
pub const CONVERGED: Micros = 3 * SECOND;
/// The extra time until a gateway that never came back is forgotten: its lease, and the time of a router started
/// meanwhile to report everything.
pub const FORGET: Micros = 34 * SECOND;

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
    /// The machines' clock at the start.
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
    /// The time within which each command has its outcome, whatever happens to one proxy.
    pub prompt: Option<Micros>,
    /// The times at which the partitions of brokers, or of routers, double, each once; `partitions` is the result.
    pub grows: Vec<(Micros, Kind)>,
    pub growing: Growing,
    /// A fault that falls into a step of the doubling.
    pub strike: Option<Strike>,
    pub second: Option<SecondCluster>,
    /// The replacement of the cluster's secret: its begin, the time within which all servers take a step, and the pause
    /// before the next step.
    pub rekeys: Option<(Micros, Micros, Micros)>,
    /// Whether nodes must prove their identities, as the run goes on.
    pub identities: Option<Identities>,
    /// Each client is given one gateway and no proxy; servers name the others.
    pub learns: bool,
}

/// How the control plane doubles partitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing {
    /// Within it all hear of a step.
    pub spread: Micros,
    /// The time from the end of a step, when all have finished it, to the next one.
    pub grace: Micros,
    /// A process that stands still is not waited for: its session with the registry is over.
    pub forgets_paused: bool,
}
