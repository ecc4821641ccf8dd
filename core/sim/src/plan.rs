//! The plan of one run: topology, load, network and faults, all drawn from the seed.
//!
//! Owns the structure of a plan. The draws are in the modules below, by the subject of their runs.

use muster_rooms::Policy;
use muster_transport::Micros;

use crate::identities::Identities;
use crate::matrix::Strike;
use crate::second::SecondCluster;

pub use crate::fault::{Fault, Kind, Upkeep};
pub use allowed::Late;
pub use muster_simkit::{Weather, MS, SECOND};

mod ahead;
mod allowed;
mod clusters;
mod heavy;
mod layout;
mod mixed;
mod relays;
mod steady;
mod struck;
mod topology;

/// How long after the last fault everything must be normal again: sessions idle out (3 s), a leave is held (2 s), a
/// client's longest wait between attempts (5 s), and three repair intervals.
pub const SETTLE: Micros = 13 * SECOND;
/// The same for views, once members neither join nor leave: three repair intervals, each as long as the timeout of a
/// silent link.
pub const CONVERGED: Micros = 3 * SECOND;
/// The extra time until a gateway that never returned is forgotten: its lease, and the time of a router started
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
    /// A slow reader takes one item this often.
    pub read_every: Option<Micros>,
    /// How often it leaves a room or returns.
    pub toggle_every: Option<Micros>,
    /// Whether it returns with its earlier positions.
    pub resumes: bool,
    /// How many of 100 of these are moved ahead in a stream.
    pub forges: u64,
}

/// A client without load that reads at once.
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
            forges: 0,
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
    /// Number of partitions of brokers and of routers.
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
    /// All leave and are silent for longer than a room is kept, then return.
    pub evicts: bool,
    /// How long after the end of faults, at most, all views must equal those of the gateways.
    pub converges: Option<Micros>,
    /// How long after the return of a killed process, at most, every member must have received a new message.
    pub back_max: Option<Micros>,
    /// How often each client sends a command.
    pub command_every: Option<Micros>,
    /// The time within which each command ends, whatever happens to one proxy.
    pub prompt: Option<Micros>,
    /// The times at which the partitions of brokers, or of routers, double, each once; `partitions` is the final
    /// number.
    pub grows: Vec<(Micros, Kind)>,
    pub growing: Growing,
    /// A fault during a step of the doubling.
    pub strike: Option<Strike>,
    pub second: Option<SecondCluster>,
    /// The replacement of the cluster's secret: its start, the time within which all servers take a step, and the
    /// pause before the next step.
    pub rekeys: Option<(Micros, Micros, Micros)>,
    /// Whether nodes must prove their identities, during the run.
    pub identities: Option<Identities>,
    /// Each client is given one gateway and no proxy; servers announce the others.
    pub learns: bool,
    /// Every second client wants only some messages.
    pub filters: bool,
    /// A busy room on more gateways than this is passed on by some of them.
    pub relay_above: usize,
}

/// How the control plane doubles partitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing {
    /// Time within which all nodes learn of a step.
    pub spread: Micros,
    /// The time from the end of a step, when all have finished it, to the next one.
    pub grace: Micros,
    /// A process that stands still is not waited for: its session with the registry has expired.
    pub forgets_paused: bool,
}
