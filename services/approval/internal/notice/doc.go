// Package notice notifies people of approvals by webhook, by mail and in Slack. The store contains the outbox, which is
// the list of notices to send. Each notice is sent at least once, with the same id in every attempt.
package notice
