//! The messages of the demo. Most are real invoices, some of them published several times. The
//! others have to become dead letters.

use std::sync::Arc;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::Failure;
use crate::invoice;
pub(crate) use crate::invoice::Invoice;

/// Number of messages whose body cannot be parsed.
const POISON: usize = 7;
/// Number of messages that have the key of another message and a different body.
const FORGERIES: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) key: Arc<str>,
    pub(crate) body: String,
}

pub(crate) struct Plan {
    /// Messages in the order in which they are published.
    pub(crate) messages: Vec<Letter>,
    /// Messages with the key of an invoice and a different body. They are published after all
    /// invoices are booked.
    pub(crate) forgeries: Vec<Letter>,
    pub(crate) invoices: usize,
    /// Keys of the messages that have to become dead letters.
    pub(crate) poison: Vec<Arc<str>>,
    pub(crate) keys: Vec<Arc<str>>,
}

/// Reads the first `limit` invoices from the file of real invoices. Reads all invoices if `limit`
/// is `None`.
pub(crate) fn load(limit: Option<usize>) -> Result<Vec<Invoice>, Failure> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/invoices.csv");
    Ok(invoice::load(file, limit)?)
}

impl Plan {
    /// Makes one to three copies of each invoice, and messages that have to become dead letters.
    /// The copies of an invoice are published close together or far apart.
    pub(crate) fn new(invoices: &[Invoice], dice: &mut StdRng) -> Self {
        let mut places: Vec<(usize, Letter)> = Vec::new();
        for (i, invoice) in invoices.iter().enumerate() {
            let body = serde_json::to_string(invoice).expect("texts are JSON");
            let letter = Letter { key: Arc::clone(&invoice.number), body };
            for repeat in 0..dice.random_range(1..=3) {
                let later = match (repeat, dice.random_bool(0.5)) {
                    (0, _) => 0..64,
                    (_, true) => 0..8,
                    (_, false) => 0..5_000,
                };
                places.push((i + dice.random_range(later), letter.clone()));
            }
        }
        let mut poison = Vec::new();
        for n in 0..POISON {
            let key: Arc<str> = format!("poison-{n}").into();
            let body = "neither an invoice nor JSON".to_owned();
            places.push((
                dice.random_range(0..invoices.len()),
                Letter { key: Arc::clone(&key), body },
            ));
            poison.push(key);
        }
        places.sort_by_key(|(place, _)| *place);
        let mut some: Vec<&Invoice> = invoices.iter().collect();
        some.shuffle(dice);
        let forged = some.into_iter().take(FORGERIES);
        let forgeries: Vec<_> = forged
            .map(|invoice| {
                let total = "1000000".to_owned();
                let body = serde_json::to_string(&Invoice { total, ..invoice.clone() });
                let (key, body) = (Arc::clone(&invoice.number), body.expect("texts are JSON"));
                Letter { key, body }
            })
            .collect();
        poison.extend(forgeries.iter().map(|l| Arc::clone(&l.key)));
        let messages = places.into_iter().map(|(_, letter)| letter).collect();
        let keys = invoices.iter().map(|i| Arc::clone(&i.number)).collect();
        Self { messages, forgeries, invoices: invoices.len(), poison, keys }
    }
}
