package upstream

import "github.com/sluice-mesh/sluice/services/internal/quota"

// maxWaiting is how many requests of one principal and its agents, whatever their clients, may wait at a server
// for a client to make them again. They are not in flight, and each holds a connection.
const maxWaiting = 64

func newWaiting() *quota.Quota {
	return quota.New("requests that wait at this server for an answer of the client", quota.For(maxWaiting))
}
