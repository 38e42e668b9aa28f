//! A wrong node measures every deadline by its own clock.

use super::*;

#[tokio::test]
async fn a_deadline_of_another_server_that_counts_is_caught() {
    let by = "a_deadline_by_the_clock_of_another_server_is_over";
    let credulous = Wrap::new(memory(), |node, mut batch, deadline| async move {
        if let (Some(not_after), Some(server)) = (&mut batch.not_after, node.server()) {
            not_after.server = server;
        }
        node.call(batch, deadline).await
    });
    failure(credulous, Hooks::default(), by).await;
}
