//! A wrong node: it measures every deadline by its own clock, even if the deadline is by another
//! server's clock.

use super::*;

struct Credulous(MemoryNode);

impl LockNode for Credulous {
    fn call(&self, mut batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        if let (Some(not_after), Some(server)) = (&mut batch.not_after, self.0.server()) {
            not_after.server = server;
        }
        self.0.call(batch, deadline)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.0.events()
    }

    fn name(&self) -> Arc<str> {
        "credulous".into()
    }
}

#[tokio::test]
async fn a_deadline_of_another_server_that_counts_is_caught() {
    let by = "a_deadline_by_the_clock_of_another_server_is_over";
    let text = failure(Credulous(MemoryNode::new()), Hooks::default(), by).await;
    assert!(text.contains("credulous"), "{text}");
}
