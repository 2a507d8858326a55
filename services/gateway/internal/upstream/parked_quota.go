package upstream

import "github.com/sluice-mesh/sluice/services/internal/quota"

// maxWaiting is the maximum number of requests of one principal and its agents that wait at a server for their clients
// to repeat them. The requests of all clients of the principal count together. Waiting requests do not count as
// requests in flight, but each of them occupies a connection.
const maxWaiting = 64

func newParkedQuota() *quota.Quota {
	return quota.New("requests that wait at this server for an answer of the client", quota.For(maxWaiting))
}
