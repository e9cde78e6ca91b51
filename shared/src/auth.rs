//! The challenge that a tenant's token answers: HMAC-SHA256 (RFC 2104, FIPS 180-4), so that the token never travels.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 32;
/// Bytes of the answer to a challenge.
pub const PROOF_BYTES: usize = 32;

/// A server's random challenge. All zero means that the tenant has no token and no proof is asked for.
pub type Challenge = [u8; CHALLENGE_BYTES];
/// The answer to a challenge.
pub type Proof = [u8; PROOF_BYTES];

/// What a client that knows `token` answers to `challenge`. The tenant's name and the client's id are part of it, so
/// that a proof can't be replayed for another of them.
#[must_use]
pub fn proof(token: &[u8], challenge: &Challenge, tenant: &[u8], client_id: u64) -> Proof {
    mac(token, challenge, tenant, client_id).finalize().into_bytes().into()
}

/// Whether `answer` is the proof that the client knows `token`. Takes the same time for each wrong answer.
#[must_use]
pub fn verify(token: &[u8], challenge: &Challenge, tenant: &[u8], client_id: u64, answer: &Proof) -> bool {
    mac(token, challenge, tenant, client_id).verify_slice(answer).is_ok()
}

fn mac(token: &[u8], challenge: &Challenge, tenant: &[u8], client_id: u64) -> Hmac<Sha256> {
    // HMAC takes keys of any length (RFC 2104, section 2), so this can't fail.
    let mut mac =
        Hmac::<Sha256>::new_from_slice(token).unwrap_or_else(|_| unreachable!("HMAC takes any key"));
    mac.update(b"lanner-auth-1");
    mac.update(challenge);
    mac.update(&client_id.to_le_bytes());
    mac.update(tenant);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_token_for_the_right_challenge_passes() {
        let challenge = [7; CHALLENGE_BYTES];
        let good = proof(b"token", &challenge, b"team", 5);
        assert!(verify(b"token", &challenge, b"team", 5, &good));
        assert!(!verify(b"Token", &challenge, b"team", 5, &good));
        assert!(!verify(b"token", &[8; CHALLENGE_BYTES], b"team", 5, &good));
        assert!(!verify(b"token", &challenge, b"tean", 5, &good));
        assert!(!verify(b"token", &challenge, b"team", 6, &good));
        assert!(!verify(b"token", &challenge, b"team", 5, &[0; PROOF_BYTES]));
    }
}
