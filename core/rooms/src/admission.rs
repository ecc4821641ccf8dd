//! The verdict on a credential, for roles whose sessions have rights: the same at gateways and proxies.
//!
//! Owns: [`admit`]. Must not know: tokens, rooms, what a role does with a request.

use muster_transport::{Answered, Code, Denied, Lodge, Micros, Sessions};

use crate::accounts::{AccountId, Accounts};
use crate::rights::{split_verdict, Admitted, Grant};

/// The session's data that holds the rights and the account of its user.
pub(crate) trait HasGrant {
    fn grant(&mut self) -> &mut Grant;
    fn account(&mut self) -> &mut Option<AccountId>;
}

/// Takes a verdict: the user and its rights, or the reason of the refusal. `aside`: the guest's part of the
/// credential. Returns a session that is open now, and its requests that waited.
pub(crate) fn admit<T: HasGrant + Default>(
    sessions: &mut Sessions<T>,
    lodge: &mut Lodge,
    accounts: &mut Accounts,
    now: Micros,
    id: u64,
    said: Result<Admitted, Denied>,
    aside: &[u8],
) -> Option<(u32, Vec<Vec<u8>>)> {
    let (mut said, grant) = split_verdict(said);
    let opens = sessions.table.find(id).and_then(|slot| sessions.table.get(slot));
    let opens = opens.is_some_and(|peer| !peer.data.is_open());
    if said.is_ok_and(|admission| opens && !accounts.admits(admission.user)) {
        said = Err(Denied::Sessions);
    }
    match sessions.answer(now, id, said)? {
        Answered::Opened(slot, waiting) => {
            if let Some(peer) = sessions.table.get_mut(slot) {
                *peer.data.data.grant() = grant;
                *peer.data.data.account() = Some(accounts.enter(now, peer.data.user));
                lodge.opened(now, id, peer.data.user, aside);
            }
            Some((slot, waiting))
        }
        Answered::Renewed(slot) => {
            lodge.renewed(now, id, aside);
            let peer = sessions.table.get_mut(slot);
            // With other rights the session joins its rooms again, so that the new rights apply to them.
            if peer.is_some_and(|peer| *peer.data.data.grant() != grant) {
                sessions.refuse(now, slot, Code::Busy);
            }
            sessions.reschedule(now, slot);
            None
        }
    }
}
