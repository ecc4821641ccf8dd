//! The answer to a credential, at a role whose sessions have rights: the same at gateways and proxies.
//!
//! Owns: [`admit`]. Must not know: tokens, rooms, what a role does with a request.

use muster_transport::{Answered, Code, Denied, Lodge, Micros, Sessions};

use crate::accounts::{AccountId, Accounts};
use crate::rights::{apart, Admitted, Grant};

/// What a session keeps, with the rights and the account of its user.
pub(crate) trait HasGrant {
    fn grant(&mut self) -> &mut Grant;
    fn account(&mut self) -> &mut Option<AccountId>;
}

/// Takes an answer: the user and its rights, or why it is refused. `aside`: what the credential says for a guest.
/// Returns a session that is open now, and its requests that waited.
pub(crate) fn admit<T: HasGrant + Default>(
    sessions: &mut Sessions<T>,
    lodge: &mut Lodge,
    accounts: &mut Accounts,
    now: Micros,
    id: u64,
    said: Result<Admitted, Denied>,
    aside: &[u8],
) -> Option<(u32, Vec<Vec<u8>>)> {
    let (mut said, grant) = apart(said);
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
            // With other rights it comes to its rooms anew, which are judged by these.
            if peer.is_some_and(|peer| *peer.data.data.grant() != grant) {
                sessions.refuse(now, slot, Code::Busy);
            }
            sessions.reschedule(now, slot);
            None
        }
    }
}
