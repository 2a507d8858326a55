package rpc

// InFlight is how many calls of people a server has in flight, and how many bytes they
// hold.
func InFlight(s *Server) (calls, held int) {
	p := s.chain.people
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.by {
		calls += l.calls
	}
	return calls, p.held
}
