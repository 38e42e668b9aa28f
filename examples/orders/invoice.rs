//! Reads real invoices from a CSV file.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An invoice: one row of the CSV file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Invoice {
    #[serde(rename = "InvoiceNo")]
    pub number: Arc<str>,
    #[serde(rename = "InvoiceDate")]
    pub day: String,
    #[serde(rename = "CustomerID")]
    pub customer: String,
    /// The total, as it is written in the file. It is a part of an idempotency key, so it stays
    /// text: a float could be formatted in another way.
    #[serde(rename = "TotalPrice")]
    pub total: String,
}

/// Reads the first `limit` invoices of the file, or all invoices if `limit` is `None`.
pub fn load(file: impl AsRef<Path>, limit: Option<usize>) -> Result<Vec<Invoice>, csv::Error> {
    let mut reader = csv::Reader::from_path(file)?;
    reader.deserialize().take(limit.unwrap_or(usize::MAX)).collect()
}
