//! Signatures of callbacks by Standard Webhooks: HMAC-SHA256 over id, time and body.
//!
//! Owns: secrets and the values of the three headers. Must not know: HTTP, clocks.
//!
//! Source: the Standard Webhooks specification, sections "Signature scheme" and "Symmetric".

use base64::prelude::{Engine, BASE64_STANDARD};
use ring::hmac;

const PREFIX: &str = "whsec_";

/// Length of a secret in bytes: the specification's bounds.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Maximum seconds by which a signature's time may differ from the receiver's clock.
const TOLERANCE_S: u64 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("secret is not base64 after `whsec_`")]
    Encoding,
    #[error("secret has {0} bytes (24 to 64)")]
    Length(usize),
}

/// One key of a target.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// Parses `whsec_` and base64; the prefix is optional.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| SecretError::Encoding)?;
        if !SECRET_BYTES.contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        Ok(Secret(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// The keys that sign a call: two while one replaces the other.
#[derive(Clone, Default)]
pub struct Secrets(pub Vec<Secret>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// The value of `webhook-signature`; `time` in seconds since 1970.
    pub fn sign(&self, id: &str, time: u64, body: &[u8]) -> String {
        let mut value = String::new();
        for Secret(key) in &self.0 {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str("v1,");
            BASE64_STANDARD.encode_string(tag(key, id, time, body), &mut value);
        }
        value
    }
}

/// Whether a received callback has a recent signature by `secret`: the check of a target.
pub fn verify(secret: &Secret, id: &str, time: u64, body: &[u8], signature: &str, now: u64) -> bool {
    let mut content = signed(id, time);
    content.extend_from_slice(body);
    let valid = |part: &str| {
        let tag = part
            .strip_prefix("v1,")
            .and_then(|tag| BASE64_STANDARD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(&secret.0, &content, &tag).is_ok())
    };
    now.abs_diff(time) <= TOLERANCE_S && signature.split(' ').any(valid)
}

fn tag(key: &hmac::Key, id: &str, time: u64, body: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(&signed(id, time));
    context.update(body);
    context.sign()
}

fn signed(id: &str, time: u64) -> Vec<u8> {
    format!("{id}.{time}.").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_the_one_of_the_specification() {
        // The example of the specification's reference libraries.
        let secrets = Secrets(vec![Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()]);
        let signature = secrets.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn receiver_accepts_either_of_two_signatures_but_no_changed_or_old_ones() {
        let old = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let new = Secret::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let signature = Secrets(vec![new.clone(), old.clone()]).sign("id", 1_000, b"body");
        for secret in [&old, &new] {
            assert!(verify(secret, "id", 1_000, b"body", &signature, 1_300));
            assert!(!verify(secret, "id", 1_000, b"body", &signature, 1_301));
            assert!(!verify(secret, "id", 1_000, b"Body", &signature, 1_000));
            assert!(!verify(secret, "id", 1_001, b"body", &signature, 1_001));
            assert!(!verify(secret, "ie", 1_000, b"body", &signature, 1_000));
        }
        assert!(matches!(Secret::parse("whsec_AAAA"), Err(SecretError::Length(3))));
        assert!(matches!(Secret::parse("whsec_%"), Err(SecretError::Encoding)));
    }
}
