package upstream

import "github.com/sluice-mesh/sluice/services/internal/quota"

// maxWaiting is how many requests of one principal and its agents, over all clients, may wait at a server for their
// client to repeat them. They don't count as requests in flight, but each holds a connection.
const maxWaiting = 64

func newWaiting() *quota.Quota {
	return quota.New("requests that wait at this server for an answer of the client", quota.For(maxWaiting))
}
