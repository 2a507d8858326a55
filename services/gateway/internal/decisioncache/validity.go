package decisioncache

import "time"

// MaxAge is the maximum time between a request to the policy service for a decision and the beginning of the call. The
// policy service waits for that time before it acknowledges that calls are stopped.
const MaxAge = time.Second

// A Validity is the time in which a call may begin by a decision. The zero Validity has ended.
type Validity struct {
	until instant
	clock func() instant
}

// BeginRequest returns the validity of a decision that is requested from the policy service now.
func (d *Cache) BeginRequest() Validity {
	return Validity{d.clock().after(MaxAge - MaxAge/drift), d.clock}
}

// LeaseValidity returns the validity of decisions from the cache. It must be called before [Cache.Get].
func (d *Cache) LeaseValidity() Validity {
	e := d.epoch.Load()
	if e == nil {
		return Validity{}
	}
	until := e.until.Load()
	if until == nil {
		return Validity{}
	}
	return Validity{*until, d.clock}
}

// HasEnded reports whether no call may begin by the decision any more.
func (v Validity) HasEnded() bool { return v.clock == nil || v.clock().reaches(v.until) }
