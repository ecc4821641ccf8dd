//! The settings of callbacks, by the names that they have in the configuration. The control plane passes them as JSON.
//!
//! Owns: names, units and defaults. Must not know: where settings come from, and certificates.

use std::time::Duration;

use serde::Deserialize;

use crate::caller::Settings;
use crate::client::Tls;
use crate::guard::Guard;
use crate::target::Limits;

/// Times are seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallSettings {
    /// Networks that calls may reach, beside public addresses.
    pub allowed: Vec<String>,
    /// Of one target, as are all up to `open_for`.
    pub concurrency: usize,
    /// Calls a second; absent: unlimited.
    pub rate: Option<f64>,
    pub burst: f64,
    pub queue_max: usize,
    pub wait_max: f64,
    pub failures_max: u32,
    pub open_for: f64,
    pub in_flight_max: usize,
    pub calls_max: usize,
}

impl Default for CallSettings {
    fn default() -> Self {
        let (settings, limits) = (Settings::default(), Limits::default());
        CallSettings {
            allowed: Vec::new(),
            concurrency: limits.concurrency,
            rate: limits.rate,
            burst: limits.burst,
            queue_max: limits.queue_max,
            wait_max: limits.wait_max_us as f64 / 1e6,
            failures_max: limits.failures_max,
            open_for: limits.open_us as f64 / 1e6,
            in_flight_max: settings.in_flight_max,
            calls_max: settings.calls_max,
        }
    }
}

impl CallSettings {
    /// The error in these settings, if there is one.
    pub fn caller(&self, tls: Tls) -> Result<Settings, String> {
        if self.rate.is_some_and(|rate| rate <= 0.0) || self.burst < 1.0 {
            return Err("rate must be above 0 and burst at least 1".into());
        }
        let networks = self.allowed.iter().map(|network| {
            let wrong = |_| format!("invalid network {network} (expected CIDR, for example 10.0.0.0/8)");
            network.parse().map_err(wrong)
        });
        Ok(Settings {
            guard: Guard {
                allowed: networks.collect::<Result<_, _>>()?,
            },
            tls,
            limits: Limits {
                concurrency: self.concurrency,
                rate: self.rate,
                burst: self.burst,
                queue_max: self.queue_max,
                wait_max_us: micros(self.wait_max)?,
                failures_max: self.failures_max,
                open_us: micros(self.open_for)?,
            },
            in_flight_max: self.in_flight_max,
            calls_max: self.calls_max,
        })
    }
}

fn micros(seconds: f64) -> Result<u64, String> {
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| format!("invalid duration of {seconds} s"))?;
    Ok(duration.as_micros() as u64)
}
