# MLflow's server with a PostgreSQL driver and logins, in the versions of constraints.txt.
FROM python:3.11-slim
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt 'mlflow[auth]' psycopg2-binary \
    && useradd --create-home --uid 1000 mlflow \
    && mkdir -p /artifacts /var/lib/mlflow && chown mlflow /artifacts /var/lib/mlflow
USER mlflow
# The database of users is stored in this folder (auth.ini).
WORKDIR /var/lib/mlflow
