//! Python values as the engines take them, and back.

use muster_rooms::{role, room_placement};
use std::collections::BTreeSet;

pub use muster_py_common::*;
use muster_rooms::{Ages, AGE_BOUNDS};
use muster_transport::{
    AllowList, Demand, Growth, Layer, LinkChange, Links, Listed, Micros, NodeState, Past, PlacedNode, Placement, Role,
    Server, ServerKey, PARTITIONS_MAX,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// A role with links of any system.
pub fn role(name: &str) -> PyResult<Role> {
    let known = role::named(name).or_else(|| muster_presence::role::named(name));
    known.ok_or_else(|| PyValueError::new_err(format!("no such role: {name}")))
}

/// Its name.
pub fn role_name(role: Role) -> &'static str {
    muster_presence::role::name(role).unwrap_or_else(|| role::name(role))
}

/// This node's own private key, the list (node, role, public key), and how strictly it is applied.
pub type Allow = (Vec<u8>, Vec<(u32, String, Vec<u8>)>, String);

pub fn allow_list((own, nodes, demand): Allow) -> PyResult<AllowList> {
    let demand = match demand.as_str() {
        "accepted" => Demand::Accepted,
        "offered" => Demand::Offered,
        "required" => Demand::Required,
        other => return Err(PyValueError::new_err(format!("no such demand: {other}"))),
    };
    let listed = |(node, name, key): (u32, String, Vec<u8>)| -> PyResult<(u32, Listed)> {
        let (role, key) = (role(&name)?, array(&key, "a public key")?);
        Ok((node, Listed { role, key }))
    };
    Ok(AllowList {
        own: ServerKey::from_private(array(&own, "a private key")?),
        nodes: nodes.into_iter().map(listed).collect::<PyResult<_>>()?,
        demand,
    })
}

fn state(name: &str) -> PyResult<NodeState> {
    match name {
        "init" => Ok(NodeState::Init),
        "running" => Ok(NodeState::Running),
        "draining" => Ok(NodeState::Draining),
        _ => Err(PyValueError::new_err(format!("no such state: {name}"))),
    }
}

/// Node, role, host, link port, partition, state.
pub type NodeEntry = (u32, String, String, u16, u16, String);

/// A server as clients are told of it: host, port, public key, weight.
pub type ServerEntry = (String, u16, Vec<u8>, u16);

pub fn servers(entries: Vec<ServerEntry>) -> PyResult<Vec<Server>> {
    let server = |(host, port, key, weight): ServerEntry| {
        Ok(Server {
            addr: addr(&host, port)?,
            key: array(&key, "a public key")?,
            weight,
        })
    };
    entries.into_iter().map(server).collect()
}

/// The brokers of one more cluster, the number of their partitions, and how far these double.
pub type ClusterEntry = (Vec<NodeEntry>, u16, u8);

fn layer(count: u16, growth: u8) -> PyResult<Layer> {
    if !count.is_power_of_two() || count > PARTITIONS_MAX {
        let bound = format!("{count} partitions: not a power of two up to {PARTITIONS_MAX}");
        return Err(PyValueError::new_err(bound));
    }
    let growth = match growth {
        0 => Growth::None,
        _ if count == PARTITIONS_MAX => {
            return Err(PyValueError::new_err(format!("{count} partitions cannot double")));
        }
        1 => Growth::Prepare,
        2 => Growth::Switched,
        _ => {
            return Err(PyValueError::new_err(format!(
                "invalid step of a doubling: {growth} (expected 0, 1 or 2)"
            )))
        }
    };
    Ok(Layer::new(count, growth))
}

fn nodes(entries: Vec<NodeEntry>) -> PyResult<Vec<PlacedNode>> {
    let node = |(node, name, host, port, partition, at): NodeEntry| {
        Ok(PlacedNode {
            partition,
            state: state(&at)?,
            ..PlacedNode::new(node, role(&name)?, addr(&host, port)?)
        })
    };
    entries.into_iter().map(node).collect()
}

/// `partitions` and `growth`: of brokers and of routers; the first are powers of two, the second 0 where they do not double, 1 while
/// the new ones prepare, 2 once they serve.
pub fn placement(epoch: u32, all: Vec<NodeEntry>, partitions: (u16, u16), growth: (u8, u8)) -> PyResult<Placement> {
    let (brokers, routers) = (layer(partitions.0, growth.0)?, layer(partitions.1, growth.1)?);
    Ok(room_placement(epoch, nodes(all)?, brokers, routers))
}

/// The same with the brokers of more clusters.
pub fn beside(placement: Placement, clusters: Vec<ClusterEntry>) -> PyResult<Placement> {
    clusters
        .into_iter()
        .try_fold(placement, |placement, (brokers, partitions, growth)| {
            Ok(placement.beside(role::BROKER, nodes(brokers)?, layer(partitions, growth)?))
        })
}

/// A link's coming or going as an event.
pub fn link_event<'py>(py: Python<'py>, change: &LinkChange) -> PyResult<Bound<'py, PyTuple>> {
    match change {
        LinkChange::Up { peer, .. } => ("link_up", peer.node, role_name(peer.role), peer.epoch).into_pyobject(py),
        LinkChange::Down { peer, reason, .. } => {
            ("link_down", peer.node, role_name(peer.role), *reason).into_pyobject(py)
        }
        LinkChange::Refused { node, role } => ("link_refused", *node, role_name(*role), "").into_pyobject(py),
        LinkChange::Mistaken { node, role, found } => {
            ("link_mistaken", *node, role_name(*role), *found).into_pyobject(py)
        }
        LinkChange::Differs { node, role, theirs } => {
            let versions = (theirs.lowest(), theirs.highest());
            ("link_differs", *node, role_name(*role), versions).into_pyobject(py)
        }
        LinkChange::Unlisted { node, role } => ("link_unlisted", *node, role_name(*role), "").into_pyobject(py),
        LinkChange::Stranger { node, why } => ("link_stranger", *node, "", why.name()).into_pyobject(py),
    }
}

/// The links of a role, for its status. The round trip is None before it was measured. `ejected` tells why one is left out of choices.
pub fn links<'py>(
    py: Python<'py>,
    links: &Links,
    now: Micros,
    ejected: impl Fn(u32) -> Option<&'static str>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (node, slot) in links.proven() {
        let Some(link) = links.table.get(slot) else { continue };
        let entry = PyDict::new(py);
        let measured = Some(link.conn.flow.measured()).filter(|rtt| *rtt > 0);
        entry.set_item("node", node)?;
        entry.set_item("role", role_name(link.data.peer.role))?;
        entry.set_item("epoch", link.data.peer.epoch)?;
        entry.set_item("address", format!("{:?}", link.conn.addr))?;
        entry.set_item("protocol", link.data.version)?;
        entry.set_item("key_id", link.conn.key_id())?;
        entry.set_item("identity", link.data.key.is_some())?;
        entry.set_item("rtt_us", measured)?;
        entry.set_item("loss", link.data.loss.share())?;
        entry.set_item("cwnd", link.conn.flow.cwnd())?;
        entry.set_item("in_flight", link.conn.flow.in_flight())?;
        entry.set_item("ejected", ejected(node))?;
        past(&entry, links.past(node), now)?;
        list.append(entry)?;
    }
    Ok(list)
}

/// How old messages were that came, by the node that they came from: since the start in buckets, each with all below it, and of late.
/// Linked nodes from which such messages can come, those of `role`, are there before the first one.
pub fn ages<'py>(py: Python<'py>, ages: &Ages, links: &Links, role: Role) -> PyResult<Bound<'py, PyList>> {
    let linked = links.proven().filter(|(_, slot)| {
        let link = links.table.get(*slot);
        link.is_some_and(|link| link.data.peer.role == role)
    });
    let nodes: BTreeSet<u32> = linked
        .chain(ages.iter().map(|(node, _)| (node, 0)))
        .map(|(node, _)| node)
        .collect();
    let list = PyList::empty(py);
    for node in nodes {
        let histogram = ages.of(node);
        let entry = PyDict::new(py);
        let mut below = 0;
        let cumulative = histogram.counts.iter().map(|count| {
            below += count;
            below
        });
        let ends = AGE_BOUNDS
            .iter()
            .map(|bound| Some(f64::from(*bound) / 1e6))
            .chain([None]);
        entry.set_item("node", node)?;
        entry.set_item("buckets", ends.zip(cumulative).collect::<Vec<_>>())?;
        entry.set_item("sum_s", histogram.sum_us as f64 / 1e6)?;
        entry.set_item("p50_us", histogram.recent(0.5))?;
        entry.set_item("p99_us", histogram.recent(0.99))?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Links that a role has not and should have, or had.
pub fn links_lost<'py>(py: Python<'py>, links: &Links, now: Micros) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (node, role, known) in links.lost(now) {
        let entry = PyDict::new(py);
        entry.set_item("node", node)?;
        entry.set_item("role", role_name(role))?;
        past(&entry, known, now)?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Since when a link is there, or not, and how it was since the first one; None where there never was one.
fn past(entry: &Bound<'_, PyDict>, past: Option<&Past>, now: Micros) -> PyResult<()> {
    let seconds = |since: Micros| now.saturating_sub(since) as f64 / 1e6;
    entry.set_item("lasts_s", past.map(|past| seconds(past.changed_at)))?;
    entry.set_item("observed_s", past.map_or(0.0, |past| seconds(past.since)))?;
    entry.set_item("availability", past.map_or(0.0, |past| past.availability(now)))?;
    entry.set_item("failures", past.map_or(0, |past| past.failures))
}
