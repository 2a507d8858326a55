package stdio

import "time"

// StartingSince implements [upstream.Starter].
func (s *transport) StartingSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first time.Time
	for _, h := range s.hosts {
		if h.start != nil && (first.IsZero() || h.startedAt.Before(first)) {
			first = h.startedAt
		}
	}
	return first
}

// Notice implements [upstream.Starter].
func (s *transport) Notice() string {
	if s.program == nil {
		return ""
	}
	return s.program.notice()
}
