// Package notice notifies people of approvals by webhooks, by mail and in Slack. The store has the notices that must be
// sent: the outbox. Each notice is sent at least once, with the same identifier in every attempt.
package notice
