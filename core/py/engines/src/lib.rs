//! The servers' engines for Python: names and types, no logic. One file for each system or role; `convert` has what they share.

mod convert;
mod edge;
mod grant;
mod journal;
mod keeping;
mod keys;
mod letters;
mod likes;
mod lingering;
mod load;
mod mailboxes;
mod messages;
mod online;
mod presence;
mod recipients;
mod server;
mod setup;
mod stored;
mod undelivered;

use pyo3::prelude::*;

#[pymodule]
fn _engines(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SHARED_USER", muster_rooms::command::SHARED_USER)?;
    module.add("RIGHTS", muster_rooms::Rights::WORDS.map(|(word, _)| word).to_vec())?;
    module.add_function(wrap_pyfunction!(keys::public_key, module)?)?;
    module.add_function(wrap_pyfunction!(keys::key_proves, module)?)?;
    module.add_function(wrap_pyfunction!(keys::room_owners, module)?)?;
    module.add_class::<grant::Grant>()?;
    module.add_class::<recipients::Recipients>()?;
    module.add_class::<undelivered::Undelivered>()?;
    module.add_class::<journal::Journal>()?;
    module.add_function(wrap_pyfunction!(journal::check_log, module)?)?;
    module.add_class::<edge::EdgeEngine>()?;
    module.add_class::<likes::LikesEngine>()?;
    module.add_class::<mailboxes::Mailboxes>()?;
    module.add_class::<load::LoadEngine>()?;
    module.add_function(wrap_pyfunction!(messages::assign_workers, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_change, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_claim, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_inserts, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_meet, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_new, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_put, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_put_ahead, module)?)?;
    module.add_function(wrap_pyfunction!(stored::stored_read, module)?)?;
    module.add_function(wrap_pyfunction!(messages::webhook_verify, module)?)?;
    module.add_function(wrap_pyfunction!(messages::worker_weight, module)?)?;
    module.add_function(wrap_pyfunction!(messages::dying_results, module)?)?;
    module.add_function(wrap_pyfunction!(messages::message_numbers, module)?)?;
    module.add_class::<messages::CallbackClient>()?;
    module.add_class::<messages::ClaimLedger>()?;
    module.add_class::<stored::FiringClock>()?;
    module.add_class::<messages::FiringEngine>()?;
    module.add_class::<messages::RetryPlan>()?;
    module.add_class::<messages::ScheduleKeeper>()?;
    module.add_function(wrap_pyfunction!(messages::salvage_schedule, module)?)?;
    module.add_class::<messages::WorkerDispatch>()?;
    module.add_class::<keeping::OnlineWriterEngine>()?;
    module.add_class::<online::OnlineProxyEngine>()?;
    module.add_class::<online::UnicastEngine>()?;
    module.add_class::<keeping::PresenceGatewayEngine>()?;
    module.add_function(wrap_pyfunction!(presence::presence_ask, module)?)?;
    module.add_function(wrap_pyfunction!(presence::presence_bucket, module)?)?;
    module.add_function(wrap_pyfunction!(presence::presence_full_ask, module)?)?;
    module.add_function(wrap_pyfunction!(presence::presence_record, module)?)?;
    module.add_function(wrap_pyfunction!(presence::presence_split, module)?)?;
    module.add_class::<presence::PresenceAccess>()?;
    module.add_class::<presence::PresenceLookup>()?;
    module.add_class::<presence::PresenceTable>()?;
    module.add_class::<presence::PresenceWriter>()?;
    module.add_class::<server::GatewayEngine>()?;
    module.add_class::<server::ProxyEngine>()?;
    module.add_class::<server::BrokerEngine>()?;
    module.add_class::<server::RouterEngine>()
}
