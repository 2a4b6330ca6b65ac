from openenv.core.env_server import create_app
from server.exam import Answer, ExamEnvironment, Sheet

app = create_app(ExamEnvironment, Answer, Sheet, env_name="exam", max_concurrent_envs=2)
