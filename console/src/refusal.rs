//! The answer to a request that the console refuses.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal: its status, a word for programs, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    text: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into() }
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", text)
    }

    pub(crate) fn nodes(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "nodes", text)
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Creates the refusal for an invalid name or setting in a request.
impl From<palisade::ConfigError> for Refusal {
    fn from(e: palisade::ConfigError) -> Self {
        Self::bad_request(e.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "text": self.text } });
        (self.status, axum::Json(body)).into_response()
    }
}
