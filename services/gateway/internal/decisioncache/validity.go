package decisioncache

import "time"

// MaxAge limits the time between the gateway's request for a decision and the start of the call. When an operator stops
// calls, the policy service waits for this time before it confirms that the calls are stopped.
const MaxAge = time.Second

// A Validity is the period during which a decision allows a call to start. The zero Validity has already ended.
type Validity struct {
	until instant
	clock func() instant
}

// NewValidity returns the validity of a decision that the gateway is about to request from the policy service.
func (d *Cache) NewValidity() Validity {
	return Validity{d.clock().after(MaxAge - MaxAge/drift), d.clock}
}

// LeaseValidity returns the validity of cached decisions. The caller must call it before [Cache.Get].
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

// HasEnded reports whether the validity has ended, so that the decision does not allow the call to start any more.
func (v Validity) HasEnded() bool { return v.clock == nil || v.clock().reaches(v.until) }
