// The schema of Grafana's dashboards, by which the tests check those of the chart.
module penstock/tests/monitoring/dashboards

go 1.25.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
