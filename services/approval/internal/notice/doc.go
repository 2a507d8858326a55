// Package notice notifies people of approvals by webhooks, by mail and in Slack. Notices wait in the outbox of the
// store. Each is sent at least once, with the same identifier in every attempt. A notice decides nothing by itself.
package notice
