//! The README's example of an idempotency key: an order is delivered twice and paid once.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run -p examples --bin payments -- redis://127.0.0.1
//! ```

use palisade::{Outcome, Redlock};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).unwrap_or("redis://127.0.0.1".into());
    let payments = Redlock::from_urls(server)?.idempotency("payments").at_most_once().build()?;
    let ordered = std::time::SystemTime::now(); // the message says it: the same in every copy
    for delivery in 1..=2 {
        let call = payments.key("alice:order-7").created_at(ordered);
        match call.run(|cx| async move { Ok::<_, String>(cx.child_key("charge")) }).await {
            Ok(Outcome::Executed { value, .. }) => println!("{delivery}: paid now, {value}"),
            Ok(Outcome::Replayed(value)) => println!("{delivery}: was paid before, {value}"),
            Ok(Outcome::InFlight { .. }) => println!("{delivery}: deliver it again later"),
            Ok(other) => println!("{delivery}: {other}"), // says what a person has to do
            Err(why) => println!("{delivery}: {why}"),
        }
    }
    Ok(())
}
