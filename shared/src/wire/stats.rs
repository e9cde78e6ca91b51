//! `stats`: what a shard knows about itself, for people: the same JSON document as the admin endpoint's `/shards` gives
//! for it. Not for the data path, which is why it isn't a struct of fixed layout.
//!
//! The request has no body; the body of the reply is one UTF-8 JSON object.
