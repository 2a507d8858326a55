package upstream

import "github.com/sluice-mesh/sluice/services/internal/quota"

// maxWaiting limits how many requests of one principal and its agents wait at a server until their clients repeat them.
// All clients of the principal count together. Waiting requests do not count as requests in flight, but each of them
// occupies a connection.
const maxWaiting = 64

func newParkedQuota() *quota.Quota {
	return quota.New("requests that wait at this server for an answer of the client", quota.For(maxWaiting))
}
