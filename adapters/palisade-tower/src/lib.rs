#![doc = include_str!("../README.md")]

mod body;
mod claim;
#[cfg(feature = "axum")]
mod extract;
mod keep;
mod key;
mod layer;
mod problem;
mod run;
mod scope;
mod service;
mod settings;
mod stored;

pub use body::ResponseBody;
pub use claim::Claim;
pub use keep::Keep;
pub use key::{IDEMPOTENCY_KEY, IdempotencyKey, InvalidKey};
pub use layer::{IDEMPOTENT_REPLAYED, IDEMPOTENT_STORED, IdempotencyLayer};
pub use scope::Scope;
pub use service::IdempotencyService;
pub use stored::StoredResponse;

/// The error type of request and response bodies. It can hold any error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
