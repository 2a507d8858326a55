package decisioncache

import "time"

// MaxAge is the maximum time from the gateway's request for a decision until the call starts. When an operator stops
// calls, the policy service waits for this time before it confirms that they are stopped.
const MaxAge = time.Second

// A Validity is the time during which a decision allows a call to start. The zero Validity has already ended.
type Validity struct {
	until instant
	clock func() instant
}

// NewValidity returns the validity of a decision that is about to be requested from the policy service.
func (d *Cache) NewValidity() Validity {
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

// HasEnded reports whether the decision no longer allows a call to start.
func (v Validity) HasEnded() bool { return v.clock == nil || v.clock().reaches(v.until) }
