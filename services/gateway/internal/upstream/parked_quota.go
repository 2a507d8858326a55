package upstream

import "github.com/sluice-mesh/sluice/services/internal/quota"

// maxWaiting is the maximum number of requests that wait at a server until their clients repeat them. It applies to one
// principal and its agents, across all clients. Waiting requests do not count as requests in flight, but each of them
// occupies a connection.
const maxWaiting = 64

func newParkedQuota() *quota.Quota {
	return quota.New("requests that wait at this server for an answer of the client", quota.For(maxWaiting))
}
