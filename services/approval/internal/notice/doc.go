// Package notice tells people of approvals: by webhooks, by mail and in Slack. What
// there is to tell stands in the store's outbox; it is sent at least once, with the
// same identifier at every attempt, and decides nothing by itself.
package notice
