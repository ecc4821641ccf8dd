//! The programs of the clients: they join, publish, read, leave and command.
//!
//! Owns a program's knowledge, and reports its actions to the oracles.

use muster_rooms::filter::{Filter, FILTER_VALUES_MAX};
use muster_rooms::wire::{Course, Position, Positions, StreamId};
use muster_rooms::{Client, Item};
use muster_simkit::{MS, SECOND};
use muster_transport::Micros;

use super::{Event, Role, Rooms, Sim};
use crate::oracle::{content, headers_of};

/// Messages of history that a join without positions sometimes requests.
const HISTORY: u32 = 20;

/// How far a made-up position is ahead at most: from a message that may be on its way to some that are never published.
const AHEAD_MAX: u64 = 500;

/// The state of a client's program.
#[derive(Default)]
pub struct Program {
    /// For each of the plan's rooms: the client's number of the room, and the membership.
    pub joined: Vec<Option<(u32, usize)>>,
    pub positions: Vec<Option<(Positions, Micros)>>,
    /// For each of these, the position that was made up for the last join and still stands.
    pub forged: Vec<Option<(StreamId, u64)>>,
    /// For each of the plan's publications; a room closed for another one is opened again.
    pub publications: Vec<Option<u32>>,
    /// How often its process was restarted.
    pub life: u64,
}

impl Rooms {
    /// Clients come after the servers.
    pub(super) fn process_of(&self, client: usize) -> usize {
        self.plan.servers() + client
    }

    /// The machine of a client.
    pub(super) fn machine<'w>(&self, world: &'w mut Sim, client: usize) -> &'w mut Client {
        let process = self.process_of(client);
        match &mut world.processes[process].node {
            Role::Client(machine) => machine,
            _ => unreachable!("clients come after servers"),
        }
    }

    pub(super) fn is_up(&self, world: &Sim, client: usize) -> bool {
        world.is_up(self.process_of(client))
    }

    /// A client's program starts: it joins its rooms, opens its publications, and its timers run.
    pub(super) fn begin_program(&mut self, world: &mut Sim, client: usize) {
        let plan = self.plan.clients[client].clone();
        self.programs.push(Program {
            positions: vec![None; plan.rooms.len()],
            forged: vec![None; plan.rooms.len()],
            ..Program::default()
        });
        self.open(world, client);
        for (at, publishing) in plan.publishing.iter().enumerate() {
            let first = 100 * MS + world.dice.below(publishing.every.max(500 * MS));
            let (client, at) = (client as u32, at as u32);
            world.push(world.now + first, Event::Publish { client, at });
        }
        if let Some(every) = plan.read_every {
            let client = client as u32;
            world.push(world.now + every, Event::Read { client });
        }
        if let Some(every) = plan.toggle_every {
            let client = client as u32;
            world.push(world.now + 200 * MS + every, Event::Toggle { client });
        }
        if let Some(every) = self.plan.command_every {
            let (client, first) = (client as u32, 100 * MS + world.dice.below(every));
            world.push(world.now + first, Event::Command { client });
        }
    }

    /// The first actions of a client's program in each of its lives.
    fn open(&mut self, world: &mut Sim, client: usize) {
        let plan = self.plan.clients[client].clone();
        self.programs[client].joined = vec![None; plan.rooms.len()];
        for place in 0..plan.rooms.len() {
            self.join(world, client, place);
        }
        let (now, mut publications) = (world.now, Vec::new());
        for publishing in &plan.publishing {
            let name = self.plan.rooms[publishing.room].clone();
            let opened = self.machine(world, client).publication(now, &name);
            publications.push(opened.map(|opened| opened.publication));
        }
        self.programs[client].publications = publications;
    }

    fn join(&mut self, world: &mut Sim, client: usize, place: usize) {
        let plan = &self.plan.clients[client];
        let (room, policy) = (plan.rooms[place], plan.policy);
        let name = self.plan.rooms[room].clone();
        let resumed = self.programs[client].positions[place].take().filter(|_| plan.resumes);
        // A member that returns with positions must get the messages published since it left.
        let owed_from = resumed
            .as_ref()
            .filter(|(positions, _)| !positions.0.is_empty())
            .map(|(_, at)| *at);
        let mut positions = resumed.map(|(positions, _)| positions).unwrap_or_default();
        let before = self.programs[client].forged[place]
            .take()
            .filter(|_| !positions.0.is_empty());
        let forged = self.forge(world, client, &mut positions).or(before);
        // It claims to have had what it has not.
        let owed_from = owed_from.filter(|_| forged.is_none());
        let (now, asks) = (
            world.now,
            positions.0.is_empty() && self.oracle.memberships.len() % 4 == 1,
        );
        let filter = self.plan.filters.then(|| self.filter_of(client)).flatten();
        let number = match (&filter, asks) {
            (Some(filter), _) => {
                let (from, filter) = ((positions, if asks { HISTORY } else { 0 }), filter.clone());
                self.machine(world, client)
                    .join_filtered(now, &name, from, filter, policy)
            }
            (None, true) => self.machine(world, client).join_last(now, &name, HISTORY, policy),
            (None, false) => self.machine(world, client).join(now, &name, positions, policy),
        };
        let membership = self.oracle.join(client, room, owed_from, now, filter);
        self.oracle.memberships[membership].forged = forged;
        self.commands.asked(now, membership, client, room);
        self.programs[client].joined[place] = Some((number, membership));
        let process = self.process_of(client);
        world.turn_at(process, now);
    }

    /// Every second client wants the messages of some senders that have headers.
    fn filter_of(&self, client: usize) -> Option<Filter> {
        let senders: Vec<String> = (1..=self.plan.clients.len() as u64 + 1)
            .filter(|sender| sender % 3 != client as u64 % 3)
            .take(FILTER_VALUES_MAX)
            .map(|sender| sender.to_string())
            .collect();
        let values = senders.iter().map(String::as_str);
        // Some of them want the latest message.
        let rate = (client % 4 == 3).then_some(1 << (client % 8));
        (client % 2 == 1).then(|| Filter::latest([("sender", values)], 1, rate).expect("a good filter"))
    }

    /// A program may show more of a stream than it had.
    fn forge(&mut self, world: &mut Sim, client: usize, positions: &mut Positions) -> Option<(StreamId, u64)> {
        let share = self.plan.clients[client].forges;
        if share == 0 || world.dice.below(100) >= share {
            return None;
        }
        let goes_on = |had: &&mut Position| had.course == Course::GoesOn;
        let had = positions.0.iter_mut().rfind(goes_on)?;
        let far = world.dice.below(2) * AHEAD_MAX;
        had.offset += 1 + world.dice.below(3 + far);
        Some((had.stream, had.offset))
    }

    fn leave(&mut self, world: &mut Sim, client: usize, place: usize) -> Result<(), String> {
        let Some((room, membership)) = self.programs[client].joined[place] else {
            return Ok(());
        };
        self.read(world, client, usize::MAX)?;
        self.judge_join(world, client, room, membership)?;
        let member = self.machine(world, client).room(room);
        let positions = member.map(|room| room.positions.clone()).unwrap_or_default();
        world.say(|| format!("client {client}: leaves {room}"));
        self.machine(world, client).leave(room);
        self.oracle.memberships[membership].left = true;
        self.commands.left(world.now, membership);
        self.programs[client].joined[place] = None;
        let stands =
            |(stream, offset): &(StreamId, u64)| positions.of(*stream).is_some_and(|had| had.offset == *offset);
        self.programs[client].forged[place] = self.oracle.memberships[membership].forged.filter(stands);
        self.programs[client].positions[place] = Some((positions, world.now));
        world.turn_at(self.process_of(client), world.now);
        Ok(())
    }

    /// A client's program leaves one of its rooms, or returns to one that it left.
    pub(super) fn toggle(&mut self, world: &mut Sim, client: usize) -> Result<(), String> {
        let count = self.programs[client].joined.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let place = world.dice.below(count) as usize;
        if self.programs[client].joined[place].is_none() {
            world.say(|| format!("client {client}: rejoins room {place} of its plan"));
            self.join(world, client, place);
            return Ok(());
        }
        self.leave(world, client, place)?;
        if world.dice.below(3) == 0 {
            self.join(world, client, place);
        }
        let process = self.process_of(client);
        world.turn_at(process, world.now);
        Ok(())
    }

    /// Everyone leaves all rooms, or comes back.
    pub(super) fn everyone(&mut self, world: &mut Sim, leaves: bool) -> Result<(), String> {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                if self.programs[client].joined[place].is_some() == leaves {
                    if leaves {
                        self.leave(world, client, place)?;
                    } else {
                        self.join(world, client, place);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, world: &mut Sim, client: usize, at: usize, count: usize) -> Result<(), String> {
        if !self.is_up(world, client) {
            return Ok(());
        }
        let publishing = self.plan.clients[client].publishing[at];
        let Some(publication) = self.publication(world, client, at) else {
            return Ok(());
        };
        let sender = client as u64 + 1;
        let mut bytes = Vec::new();
        for _ in 0..count {
            let (low, high) = publishing.bytes;
            let len = low + world.dice.below((high - low) as u64 + 1) as usize;
            let number = self
                .oracle
                .next_number(sender, publishing.room, self.programs[client].life);
            content(sender, publishing.room, number, len, &mut bytes);
            let ticket = self.oracle.messages.len() as u64 + 1;
            let headers = headers_of(sender, number);
            if self
                .machine(world, client)
                .publish_headed(publication, &headers, &bytes, ticket)
                .is_err()
            {
                break;
            }
            self.oracle
                .note_published(world.now, sender, publishing.room, number, len);
        }
        let process = self.process_of(client);
        world.turn_at(process, world.now);
        Ok(())
    }

    /// A client's publication, opened again if it was closed; `None` while all slots are taken.
    fn publication(&mut self, world: &mut Sim, client: usize, at: usize) -> Option<u32> {
        let (now, room) = (world.now, self.plan.clients[client].publishing[at].room);
        let known = self.programs[client].publications[at];
        let open = |machine: &Client| known.filter(|known| machine.publishing(*known).is_some());
        if let Some(known) = open(self.machine(world, client)) {
            return Some(known);
        }
        let name = self.plan.rooms[room].clone();
        let opened = self.machine(world, client).publication(now, &name);
        self.programs[client].publications[at] = opened.map(|opened| opened.publication);
        self.programs[client].publications[at]
    }

    pub(super) fn broadcast(&mut self, world: &mut Sim) -> Result<(), String> {
        for client in 0..self.plan.clients.len() {
            for at in 0..self.plan.clients[client].publishing.len() {
                self.publish(world, client, at, 1)?;
            }
        }
        Ok(())
    }

    /// A client's program reads at most `count` items of each room.
    pub(super) fn read(&mut self, world: &mut Sim, client: usize, count: usize) -> Result<(), String> {
        let now = world.now;
        let mut data = Vec::new();
        for place in 0..self.programs[client].joined.len() {
            let Some((room, membership)) = self.programs[client].joined[place] else {
                continue;
            };
            for _ in 0..count {
                data.clear();
                let Some(item) = self.machine(world, client).read(now, room, &mut data) else {
                    break;
                };
                match item {
                    Item::Command { sender, number, .. } => {
                        let room = self.oracle.memberships[membership].room;
                        world.say(|| format!("client {client}: command {number} of {sender}, membership {membership}"));
                        self.commands.received(membership, room, sender, number, &data)?;
                    }
                    Item::Message { headers, .. } => {
                        let (headers, data) = data.split_at(headers.into());
                        self.oracle.item(membership, &item, headers, data)?;
                    }
                    _ => self.oracle.item(membership, &item, &[], &data)?,
                }
            }
        }
        self.note_return(world);
        let process = self.process_of(client);
        world.turn_at(process, now);
        Ok(())
    }

    /// Notes when every lasting member has received something published after the last return of a process.
    fn note_return(&mut self, world: &mut Sim) {
        let Some((kind, since)) = self.back else { return };
        let filtered = |client: usize| self.plan.filters && self.filter_of(client).is_some();
        let stays = |client: usize| self.plan.clients[client].toggle_every.is_none() && !filtered(client);
        let mut members = self
            .oracle
            .memberships
            .iter()
            .filter(|membership| stays(membership.client));
        if members.all(|membership| membership.newest > since) {
            world.say(|| format!("every member receives again after the return of the {kind:?}"));
            self.returns.push((kind, world.now - since));
            self.back = None;
        }
    }

    /// A client's program sends a command to one of the rooms, or queries its members.
    pub(super) fn command(&mut self, world: &mut Sim, client: usize) {
        let (now, room) = (world.now, world.dice.below(self.plan.rooms.len() as u64) as usize);
        let lifetime = 500 * MS + world.dice.below(4 * SECOND);
        let (name, data) = (self.plan.rooms[room].clone(), self.commands.content());
        let counts = world.dice.below(3) == 0;
        let machine = self.machine(world, client);
        let number = match counts {
            true => machine.count(now, &name, Some(0), lifetime),
            false => machine.command(now, &name, &data, lifetime),
        };
        if let Ok(number) = number {
            self.commands.sent(now, (client, counts), room, number, lifetime);
        }
        world.turn_at(self.process_of(client), now);
    }

    /// Checks a reply to a join: that nothing was missed, or how many messages come first.
    pub(super) fn judge_join(
        &mut self,
        world: &mut Sim,
        client: usize,
        room: u32,
        membership: usize,
    ) -> Result<(), String> {
        let Some(member) = self
            .machine(world, client)
            .room(room)
            .filter(|member| member.counters.rejoined == 0)
        else {
            return Ok(());
        };
        let (recovered, counters) = (member.recovered(), member.counters);
        let given = member.join.given().filter(|_| member.is_caught_up());
        let history = given.map_or(0, |(messages, _)| u64::from(messages));
        // A message that two owners numbered counts twice in a gateway's ring, and reaches the program once.
        let had = counters.delivered + counters.repeats;
        if history > HISTORY.into() || counters.lost + counters.gaps == 0 && had < history {
            return Err(format!(
                "client {client}: {history} messages of history, and {counters:?} received"
            ));
        }
        self.asked += history;
        if recovered == Some(true) {
            self.recovered += 1;
            let numbered = |stream: StreamId| self.numbered(world, stream);
            self.oracle.believed(membership, numbered)?;
            self.oracle.recovered(membership)?;
        }
        Ok(())
    }

    /// How many messages the broker of a stream has numbered in it, if it has it.
    fn numbered(&self, world: &Sim, stream: StreamId) -> Option<u64> {
        let owner = &world.processes[stream.node as usize - 1];
        let Role::Broker(broker) = &owner.node else { return None };
        let mut rooms = broker.rooms().filter(|room| room.generation == stream.generation);
        let room = rooms.next().filter(|_| owner.epoch == stream.epoch)?;
        Some(room.ring.next() - 1)
    }

    /// A client's process has restarted: its program has forgotten everything.
    pub(super) fn program_returned(&mut self, world: &mut Sim, client: usize) {
        let program = &mut self.programs[client];
        program.life += 1;
        program.positions.fill(None);
        program.forged.fill(None);
        for (_, membership) in program.joined.iter().flatten() {
            self.oracle.memberships[*membership].left = true;
        }
        self.oracle.forget(client as u64 + 1);
        self.commands.died(world.now, client);
        self.open(world, client);
    }

    /// Everyone joins all of its rooms again.
    pub(super) fn join_all(&mut self, world: &mut Sim) {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                if self.programs[client].joined[place].is_none() {
                    self.join(world, client, place);
                }
            }
        }
    }
}
